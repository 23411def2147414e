// What ThreadSanitizer is not to report: the system's gRPC, protobuf and Abseil are not
// instrumented, so it does not see what orders their own accesses, and reports their
// insides, inlined parts of them in our binaries included.
//
// A suppression matches any frame of a report, so races in code that runs inside an RPC handler are
// not reported either. There are no such handlers in the runtime.
//
// absl::Status: where the library drops a reference to what two threads share, it orders that
// before the delete by whoever drops the last one.
//
// resident_operator_test_spin: tests give many tasks of it one output buffer, which nobody
// reads; they want the time that it takes.
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:libgrpc.so\n"
         "race:libgrpc++.so\n"
         "race:libgpr.so\n"
         "race:libprotobuf.so\n"
         "race:libabsl_graphcycles_internal.so\n"
         "race:libabsl_status.so\n"
         "race:^grpc::\n"
         "race:^absl::debian3::Status::Unref\n"
         "thread:libgpr.so\n"
         "mutex:libgrpc.so\n"
         "race:resident_operator_test_spin\n";
}
