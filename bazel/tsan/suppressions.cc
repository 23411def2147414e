// What ThreadSanitizer is not to report: the system's gRPC, protobuf and Abseil are not
// instrumented, so it does not see what orders their own accesses, and reports their
// insides, inlined parts of them in our binaries included.
//
// A suppression matches any frame of a report, so races in what runs inside an RPC
// handler go unreported too. The runtime's own handlers are those of the engine's
// control plane (runtime/engine/control), which hold a lock for their whole length; what
// they call is tested without gRPC as well.
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
