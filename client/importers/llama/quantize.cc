#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cli/progress.h"
#include "client/importers/errors.h"
#include "client/importers/llama/import.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "runtime/model/safetensors.h"

namespace resident::cli {
namespace {

using absl::StrCat;

constexpr uint64_t kPieceBytes = uint64_t{8} << 20;

template <typename T>
absl::string_view AsBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class Writer {
 public:
  Writer(const std::string& folder, const LlamaGraph& imported, const Quantization& form)
      : folder_(folder), imported_(imported), form_(form) {}

  absl::Status Write(const std::string& path) {
    RETURN_IF_ERROR(OpenFiles(path));
    RETURN_IF_ERROR(ChooseWeights());
    const mode_t mask = umask(0);
    umask(mask);
    ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path, {.mode = 0666 & ~mask}));
    RETURN_IF_ERROR(WriteHeader(file));
    uint64_t total = 0;
    for (const Source& source : sources_) total += source.tensor->size_bytes();
    Progress progress("writing weights", total);
    for (const Source& source : sources_) {
      RETURN_IF_ERROR(source.weight->quantized ? Quantize(source, file, progress)
                                               : Copy(source, file, progress));
    }
    return file.Commit();
  }

 private:
  struct Source {
    const LlamaGraph::Weight* weight;
    const SafetensorsFile* file;
    const SafetensorsTensor* tensor;
  };

  absl::Status OpenFiles(const std::string& path) {
    files_.reserve(imported_.files.size());
    for (const std::string& name : imported_.files) {
      const std::string source = StrCat(folder_, "/", name);
      std::error_code ignored;
      if (std::filesystem::equivalent(source, path, ignored)) {
        return errors::BadModelFile(path, "is a file of the model",
                                    "write the quantized weights to another file");
      }
      ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(source));
      files_.push_back(std::move(file));
    }
    return absl::OkStatus();
  }

  absl::Status ChooseWeights() {
    absl::flat_hash_map<std::string_view, Source> by_name;
    for (const SafetensorsFile& file : files_) {
      for (const SafetensorsTensor& tensor : file.tensors()) {
        by_name[tensor.name] = {nullptr, &file, &tensor};
      }
    }
    for (const LlamaGraph::Weight& weight : imported_.weights) {
      const auto found = by_name.find(weight.from);
      if (found == by_name.end() || (weight.quantized && !IsMatrix(*found->second.tensor))) {
        return errors::ModelFileChanged(folder_);
      }
      sources_.push_back(found->second);
      sources_.back().weight = &weight;
    }
    return absl::OkStatus();
  }
  static bool IsMatrix(const SafetensorsTensor& tensor) {
    const bool is_float =
        tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16;
    return is_float && tensor.shape.size() == 2 && tensor.shape[1] > 0;
  }

  absl::Status WriteHeader(AtomicFile& file) const {
    std::vector<SafetensorsTensor> tensors;
    uint64_t at = 0;
    const auto add = [&](const std::string& name, DType dtype, std::vector<uint64_t> shape,
                         uint64_t bytes) {
      tensors.push_back({name, dtype, std::move(shape), at, at + bytes});
      at += bytes;
    };
    for (const Source& source : sources_) {
      const std::string& name = source.weight->name;
      const SafetensorsTensor& tensor = *source.tensor;
      if (!source.weight->quantized) {
        add(name, tensor.dtype, tensor.shape, tensor.size_bytes());
        continue;
      }
      const uint64_t rows = tensor.shape[0];
      const uint64_t row_bytes = form_.RowBytes(tensor.shape[1]);
      const uint64_t groups = form_.Groups(tensor.shape[1]);
      add(name, form_.bits == 8 ? DType::kI8 : DType::kU8, {rows, row_bytes}, rows * row_bytes);
      add(StrCat(name, LlamaGraph::kScalesSuffix), DType::kF16, {rows, groups},
          rows * groups * sizeof(uint16_t));
    }
    return file.Append(WriteSafetensorsHeader(tensors));
  }

  static absl::Status Copy(const Source& source, AtomicFile& file, Progress& progress) {
    const uint64_t bytes = source.tensor->size_bytes();
    std::string piece;
    for (uint64_t done = 0; done < bytes; done += piece.size()) {
      piece.resize(std::min(kPieceBytes, bytes - done));
      RETURN_IF_ERROR(source.file->Read(*source.tensor, done, piece.size(), piece.data()));
      RETURN_IF_ERROR(file.Append(piece));
      progress.Advance(piece.size());
    }
    return absl::OkStatus();
  }

  absl::Status Quantize(const Source& source, AtomicFile& file, Progress& progress) const {
    const SafetensorsTensor& tensor = *source.tensor;
    const uint64_t rows = tensor.shape[0];
    const uint64_t columns = tensor.shape[1];
    const uint64_t from_bytes = columns * SizeOf(tensor.dtype);
    const uint64_t row_bytes = form_.RowBytes(columns);
    const uint64_t groups = form_.Groups(columns);
    const uint64_t rows_of_piece = std::max(uint64_t{1}, kPieceBytes / from_bytes);
    std::vector<char> piece;
    std::vector<float> row(columns);
    std::vector<uint8_t> q;
    std::vector<uint16_t> scales(rows * groups);
    for (uint64_t first = 0; first < rows; first += rows_of_piece) {
      const uint64_t count = std::min(rows_of_piece, rows - first);
      piece.resize(count * from_bytes);
      q.resize(count * row_bytes);
      RETURN_IF_ERROR(source.file->Read(tensor, first * from_bytes, piece.size(), piece.data()));
      for (uint64_t i = 0; i < count; ++i) {
        ReadFloats(tensor.dtype, piece.data() + i * from_bytes, row);
        if (!QuantizeRow(row, form_, std::span(q).subspan(i * row_bytes, row_bytes),
                         std::span(scales).subspan((first + i) * groups, groups))) {
          return errors::WeightOutOfRange(tensor.name, first + i, QuantizableLimit(form_));
        }
      }
      RETURN_IF_ERROR(file.Append(AsBytes(q)));
      progress.Advance(piece.size());
    }
    return file.Append(AsBytes(scales));
  }

  const std::string& folder_;
  const LlamaGraph& imported_;
  const Quantization& form_;
  std::vector<SafetensorsFile> files_;
  std::vector<Source> sources_;
};

}  // namespace

absl::Status WriteQuantizedLlama(const std::string& folder, const LlamaGraph& imported,
                                 const Quantization& form, const std::string& path) {
  return Writer(folder, imported, form).Write(path);
}

}  // namespace resident::cli
