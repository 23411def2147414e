// Amk: short forms for files of AMK in tests. Without other waits, each task waits for the one
// before it.
//
//   Amk amk;
//   amk.Task("ADD", {amk.In({8}), amk.In({8})}, {amk.Out({8})});
//   amk.file.dump()
#ifndef RESIDENT_TESTS_GRAPH_AMK_MAKER_H_
#define RESIDENT_TESTS_GRAPH_AMK_MAKER_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace resident::testing {

using Json = nlohmann::json;

struct Amk {
  Amk()
      : file({{"ir_version", "0.2.0"},
              {"abi_version", "0.2"},
              {"buffers", Json::array()},
              {"counters", Json::array()},
              {"tasks", Json::array()}}) {}

  int Buffer(const std::string& kind, const std::string& dtype, std::vector<int64_t> shape) {
    const int id = static_cast<int>(file["buffers"].size());
    file["buffers"].push_back({{"id", id},
                               {"name", "b" + std::to_string(id)},
                               {"kind", kind},
                               {"dtype", dtype},
                               {"shape", std::move(shape)},
                               {"space", "HBM"},
                               {"source", nullptr}});
    return id;
  }
  int In(std::vector<int64_t> shape, const std::string& dtype = "F32") {
    return Buffer("IO_INPUT", dtype, std::move(shape));
  }
  int Weight(std::vector<int64_t> shape, const std::string& dtype = "F32") {
    return Buffer("WEIGHT", dtype, std::move(shape));
  }
  int Out(std::vector<int64_t> shape, const std::string& dtype = "F32") {
    return Buffer("IO_OUTPUT", dtype, std::move(shape));
  }
  Json& Task(const std::string& op, std::vector<int> inputs, std::vector<int> outputs,
             Json params = Json::object()) {
    const int id = static_cast<int>(file["tasks"].size());
    file["counters"].push_back({{"id", id}, {"init", 0}, {"note", ""}});
    Json waits = Json::array();
    if (id > 0) waits.push_back({{"counter", id - 1}, {"threshold", 1}});
    file["tasks"].push_back({{"id", id},
                             {"op", op},
                             {"inputs", std::move(inputs)},
                             {"outputs", std::move(outputs)},
                             {"out_counter", id},
                             {"waits", waits},
                             {"params", std::move(params)},
                             {"sm", nullptr},
                             {"est_bytes", 0},
                             {"est_flops", 0},
                             {"label", ""}});
    return file["tasks"].back();
  }
  Json file;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_AMK_MAKER_H_
