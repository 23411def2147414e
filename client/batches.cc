// The batches that programs build, and their results.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/residentd_client.h"
#include "runtime/base/task_status_code.h"
#include "runtime/model/dtype.h"

namespace resident::client {
uint64_t CountElements(const Shape& shape) {
  uint64_t elements = 1;
  for (uint64_t dimension : shape) elements *= dimension;
  return elements;
}

uint32_t SizeOf(v1::DType dtype) {
  const DTypeInfo* const info = FindDType(dtype);
  return info == nullptr ? 0 : info->size_bytes();
}

TaskBatch::TaskBatch(std::string_view operator_name, uint32_t count) {
  tasks().set_operator_(operator_name.data(), operator_name.size());
  tasks().set_count(count);
}

TaskBatch& TaskBatch::Version(uint32_t version) {
  tasks().set_version(version);
  return *this;
}

TaskBatch& TaskBatch::ContentHash(std::string_view digits) {
  tasks().set_content_hash(digits.data(), digits.size());
  return *this;
}

TaskBatch& TaskBatch::Label(std::string_view label) {
  tasks().set_label(label.data(), label.size());
  return *this;
}

TaskBatch& TaskBatch::InputBytes(v1::DType dtype, const void* data, uint64_t size_bytes,
                                 const Shape& shape) {
  v1::InlineColumn& column = *tasks().add_arguments()->mutable_inline_();
  column.set_dtype(dtype);
  if (shape.empty()) column.add_shape(size_bytes / SizeOf(dtype) / std::max(tasks().count(), 1u));
  column.mutable_shape()->Add(shape.begin(), shape.end());
  column.set_data(data, size_bytes);
  return *this;
}

TaskBatch& TaskBatch::Use(const BufferHandle& buffer, const View& view) {
  v1::BufferColumn& column = *tasks().add_arguments()->mutable_buffer();
  column.add_buffer_ids(buffer.id());
  if (session_.empty()) {
    node_ = buffer.connection_;
    session_ = buffer.session_;
  }
  mixed_ = mixed_ || session_ != buffer.session_;
  column.set_stride_bytes(view.stride * client::SizeOf(buffer.dtype()));
  column.mutable_shape()->Add(view.shape.begin(), view.shape.end());
  column.mutable_strides()->Add(view.strides.begin(), view.strides.end());
  return *this;
}

TaskBatch& TaskBatch::ReturnAs(v1::DType dtype, const Shape& shape) {
  v1::ReturnedColumn& column = *tasks().add_arguments()->mutable_returned();
  column.set_dtype(dtype);
  column.mutable_shape()->Add(shape.begin(), shape.end());
  return *this;
}

TaskBatch& TaskBatch::ReturnInferred(v1::DType dtype) {
  v1::ReturnedColumn& column = *tasks().add_arguments()->mutable_returned();
  column.set_dtype(dtype);
  column.set_infer_shape(true);
  return *this;
}

TaskBatch& TaskBatch::Scalars(std::span<const double> values) {
  tasks().add_arguments()->mutable_scalar()->mutable_f64()->Add(values.begin(), values.end());
  return *this;
}

TaskBatch& TaskBatch::Integers(std::span<const int64_t> values) {
  tasks().add_arguments()->mutable_scalar()->mutable_i64()->Add(values.begin(), values.end());
  return *this;
}

FluxBatch::FluxBatch() { programs().add_offsets(0); }

FluxBatch& FluxBatch::Program(std::span<const uint8_t> bytecode) {
  programs().mutable_bytecode()->append(reinterpret_cast<const char*>(bytecode.data()),
                                        bytecode.size());
  programs().add_offsets(static_cast<uint32_t>(programs().bytecode().size()));
  return *this;
}

FluxBatch& FluxBatch::Operator(std::string_view name, uint32_t version) {
  programs().set_operator_(name.data(), name.size());
  programs().set_version(version);
  programs().clear_offsets();
  return *this;
}

FluxBatch& FluxBatch::ContentHash(std::string_view digits) {
  programs().set_content_hash(digits.data(), digits.size());
  return *this;
}

FluxBatch& FluxBatch::Label(std::string_view label) {
  programs().set_label(label.data(), label.size());
  return *this;
}

FluxBatch& FluxBatch::Inputs(std::span<const int32_t> registers, uint32_t width) {
  programs().set_initial(registers.data(), registers.size_bytes());
  programs().set_initial_width(width);
  if (programs().count() == 0 && programs().offsets_size() <= 2 && width > 0) {
    programs().set_count(static_cast<uint32_t>(registers.size() / width));
  }
  return *this;
}

FluxBatch& FluxBatch::Runs(uint32_t count) {
  programs().set_count(count);
  return *this;
}

FluxBatch& FluxBatch::SelectProgram(std::span<const uint32_t> program) {
  programs().mutable_program_index()->Assign(program.begin(), program.end());
  programs().set_count(static_cast<uint32_t>(program.size()));
  return *this;
}

FluxBatch& FluxBatch::Wanted(std::span<const uint32_t> registers) {
  programs().mutable_wanted()->Assign(registers.begin(), registers.end());
  return *this;
}

FluxBatch& FluxBatch::MaxCycles(uint64_t cycles) {
  programs().set_max_cycles(cycles);
  return *this;
}

FluxBatch& FluxBatch::UnknownOpcodeIsNop() {
  programs().set_unknown_opcode(v1::FluxPrograms::UNKNOWN_OPCODE_NOP);
  return *this;
}

absl::Status Result::status() const {
  if (ok()) return absl::OkStatus();
  if (message_.errors().empty()) return absl::InternalError("tasks failed without a reason");
  const v1::TaskError& error = message_.errors(0);
  return absl::Status(ToStatusCode(error.status()),
                      absl::StrCat("task ", error.index(), ": ", error.message()));
}

}  // namespace resident::client
