#include "server/workload/work_bound.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "server/workload/errors.h"

namespace resident {
namespace {

double CountElements(const Shape& shape) {
  double elements = 1;
  for (const int64_t size : shape) elements *= static_cast<double>(size);
  return elements;
}

// A view of one element has none.
bool HasAdjacentElements(const Shape& shape, const Shape& strides) {
  if (strides.empty()) return true;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1 && std::abs(strides[d]) == 1) return true;
  }
  return false;
}

// 0 if the rate is unknown.
double MinMs(double amount, uint64_t rate, uint64_t units) {
  return rate == 0 ? 0 : amount / (static_cast<double>(rate) * static_cast<double>(units));
}

}  // namespace

TaskWork CountWork(const OperatorVersion& version, absl::Span<const Shape> shapes,
                   absl::Span<const Shape> strides, absl::Span<const double> scalars) {
  TaskWork work;
  work.operations = version.cost.Operations(shapes, scalars);
  if (version.cost.limited()) return work;
  const std::vector<Parameter>& parameters = version.op->signature().parameters();
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (parameters[i].kind != ParameterKind::kInput || !parameters[i].strided) continue;
    double& counted = HasAdjacentElements(shapes[i], strides[i]) ? work.elements : work.scattered;
    counted = std::max(counted, CountElements(shapes[i]));
  }
  if (!version.cost.terms.empty()) {
    // Nothing is read of a matrix that is multiplied by an empty one.
    work.elements = std::min(work.elements, work.operations);
    work.scattered = std::min(work.scattered, work.operations);
  }
  return work;
}

absl::Status CheckWork(const OperatorVersion& version, const TaskWork& work, uint64_t chunks,
                       const WorkLimits& limits) {
  const std::chrono::milliseconds own = version.spec.task_time_limit;
  const std::chrono::milliseconds limit = own.count() > 0 ? own : limits.task_time;
  if (limit.count() <= 0) return absl::OkStatus();
  const EngineTraits& traits = limits.engine.traits;
  const uint64_t units =
      std::clamp<uint64_t>(chunks, 1, std::max<uint64_t>(1, limits.engine.workers));
  struct Amount {
    double amount;
    uint64_t rate;
    const char* unit;
  };
  const Amount amounts[] = {
      {work.operations, traits.max_operations_per_ms, "operations"},
      {work.elements, traits.max_elements_per_ms, "elements of an input"},
      {work.scattered, traits.max_scattered_elements_per_ms, "elements of an input"}};
  for (const Amount& each : amounts) {
    const double min_ms = MinMs(each.amount, each.rate, units);
    if (min_ms <= static_cast<double>(limit.count())) continue;
    return errors::TaskTooLong({.operator_name = version.op->name(),
                                .device = limits.device,
                                .amount = each.amount,
                                .unit = each.unit,
                                .min_seconds = min_ms / 1e3,
                                .limit_ms = static_cast<uint64_t>(limit.count()),
                                .own_limit = own.count() > 0});
  }
  return absl::OkStatus();
}

}  // namespace resident
