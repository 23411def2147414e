// Suppressed reports of ThreadSanitizer. The system's gRPC, protobuf and Abseil are not
// instrumented, so it does not see the ordering of their accesses, and reports their
// internals, including parts of them that are inlined into our binaries.
//
// A suppression matches any frame of a report, so races in code that runs inside an RPC handler are
// not reported either. There are no such handlers in the runtime.
//
// absl::Status: the library orders the release of a shared reference before the delete by the
// thread that releases the last reference.
//
// resident_operator_test_spin: tests use one output buffer for many of its tasks, and do not
// read it; they use only its duration.
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:libgrpc.so\n"
         "race:libgrpc++.so\n"
         "race:libgpr.so\n"
         "race:libprotobuf.so\n"
         "race:libabsl_graphcycles_internal.so\n"
         "race:libupb.so\n"
         "race:libabsl_status.so\n"
         "race:^grpc::\n"
         "race:^absl::debian3::Status::Unref\n"
         "thread:libgpr.so\n"
         "mutex:libgrpc.so\n"
         "race:resident_operator_test_spin\n";
}
