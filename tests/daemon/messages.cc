#include "tests/daemon/messages.h"

#include <cstring>
#include <utility>

namespace resident::testing {
namespace {

template <typename T>
std::string ToBytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename Column>
void SetShape(Column& column, const std::vector<uint64_t>& shape) {
  for (const uint64_t dim : shape) column.add_shape(dim);
}

}  // namespace

v1::Batch Tasks(const std::string& operator_name, uint32_t count) {
  v1::Batch batch;
  batch.mutable_tasks()->set_operator_(operator_name);
  batch.mutable_tasks()->set_count(count);
  return batch;
}

v1::InlineColumn* Inline(v1::Batch& batch, const std::vector<uint64_t>& shape,
                         const std::vector<float>& values) {
  v1::InlineColumn* column = batch.mutable_tasks()->add_arguments()->mutable_inline_();
  column->set_dtype(v1::DTYPE_F32);
  SetShape(*column, shape);
  column->set_data(ToBytes(values));
  return column;
}

v1::BufferColumn* Buffers(v1::Batch& batch, const std::vector<uint64_t>& ids) {
  v1::BufferColumn* column = batch.mutable_tasks()->add_arguments()->mutable_buffer();
  for (const uint64_t id : ids) column->add_buffer_ids(id);
  return column;
}

v1::ReturnedColumn* Returned(v1::Batch& batch, const std::vector<uint64_t>& shape) {
  v1::ReturnedColumn* column = batch.mutable_tasks()->add_arguments()->mutable_returned();
  column->set_dtype(v1::DTYPE_F32);
  SetShape(*column, shape);
  return column;
}

void Scalar(v1::Batch& batch, std::initializer_list<double> values) {
  v1::ScalarColumn* column = batch.mutable_tasks()->add_arguments()->mutable_scalar();
  for (const double value : values) column->add_f64(value);
}

void Integer(v1::Batch& batch, std::initializer_list<int64_t> values) {
  v1::ScalarColumn* column = batch.mutable_tasks()->add_arguments()->mutable_scalar();
  for (const int64_t value : values) column->add_i64(value);
}

v1::Batch SmallAdd(uint64_t id) {
  v1::Batch batch = Tasks("add", 1);
  batch.set_id(id);
  Inline(batch, {1}, {1});
  Inline(batch, {1}, {2});
  Returned(batch, {1});
  return batch;
}

v1::Batch Fill(uint64_t id, uint64_t floats) {
  v1::Batch batch = Tasks("fill", 1);
  batch.set_id(id);
  batch.mutable_options()->set_device(0);
  Returned(batch, {floats});
  Scalar(batch, {1});
  return batch;
}

v1::Batch Programs(const std::vector<std::string>& programs) {
  v1::Batch batch;
  v1::FluxPrograms* flux = batch.mutable_programs();
  flux->add_offsets(0);
  for (const std::string& program : programs) {
    flux->mutable_bytecode()->append(program);
    flux->add_offsets(static_cast<uint32_t>(flux->bytecode().size()));
  }
  return batch;
}

std::vector<float> Floats(const v1::BatchResult& result, int column) {
  if (result.outputs_size() <= column) return {};
  const std::string& bytes = result.outputs(column);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

std::vector<int32_t> Integers(const std::string& bytes) {
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(int32_t));
  return values;
}

grpc::Status Upload(const Client& client, uint64_t id, const std::string& bytes, uint64_t offset) {
  const auto context = client.Context();
  v1::UploadResponse response;
  const auto writer = client.buffers().Upload(context.get(), &response);
  constexpr size_t kPiece = 1 << 20;
  v1::UploadRequest request;
  request.set_buffer_id(id);
  request.set_offset(offset);
  size_t sent = 0;
  do {
    request.set_data(bytes.substr(sent, kPiece));
    if (!writer->Write(request)) break;
    sent += request.data().size();
    request.Clear();
  } while (sent < bytes.size());
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (status.ok()) {
    EXPECT_EQ(response.written_bytes(), bytes.size());
  }
  return status;
}

grpc::Status Download(const Client& client, uint64_t id, std::string* bytes, uint64_t offset,
                      uint64_t size) {
  const auto context = client.Context();
  v1::DownloadRequest request;
  request.set_buffer_id(id);
  request.set_offset(offset);
  request.set_size_bytes(size);
  const auto reader = client.buffers().Download(context.get(), request);
  v1::DownloadResponse response;
  bytes->clear();
  while (reader->Read(&response)) {
    EXPECT_LE(response.data().size(), size_t{1} << 20);
    bytes->append(response.data());
  }
  return reader->Finish();
}

std::vector<v1::BatchResult> SubmitSequentially(const Client& client,
                                                const std::vector<v1::Batch>& batches) {
  const auto context = client.Context();
  const auto stream = client.executor().Submit(context.get());
  std::vector<v1::BatchResult> results;
  for (const v1::Batch& batch : batches) {
    v1::SubmitRequest request;
    *request.mutable_batch() = batch;
    v1::SubmitResponse response;
    EXPECT_TRUE(stream->Write(request));
    EXPECT_TRUE(stream->Read(&response));
    results.push_back(std::move(*response.mutable_result()));
  }
  stream->WritesDone();
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return results;
}

uint64_t DaemonTest::MustAllocate(uint64_t floats) {
  uint64_t id = 0;
  const grpc::Status status = client_.Allocate(floats, &id);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return id;
}

void DaemonTest::ExpectServes() {
  const RunOutcome outcome = client_.Run(SmallAdd());
  EXPECT_TRUE(outcome.all_ok()) << outcome.message();
  EXPECT_EQ(Floats(outcome.result), std::vector<float>{3});
}

void ExpectRefused(const grpc::Status& status, grpc::StatusCode code,
                   const std::vector<std::string>& parts) {
  EXPECT_EQ(status.error_code(), code) << status.error_message();
  for (const std::string& part : parts) {
    EXPECT_NE(status.error_message().find(part), std::string::npos)
        << "'" << part << "' is not in: " << status.error_message();
  }
  EXPECT_NE(status.error_message().find("Fix: "), std::string::npos) << status.error_message();
}

}  // namespace resident::testing
