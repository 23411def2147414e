#include "runtime/engine/cpu/fault_handler.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "runtime/engine/engine.h"

namespace resident {
namespace {

thread_local Breadcrumb* current_breadcrumb = nullptr;
char* exit_reason = nullptr;

// Builds text without allocation or locks, because it runs in a signal handler.
class SignalSafeText {
 public:
  SignalSafeText(char* to, size_t size) : at_(to), end_(to + size - 1) {}
  void Add(const char* text) {
    while (*text != '\0' && at_ < end_) *at_++ = *text++;
    *at_ = '\0';
  }
  void AddHex(uint64_t value) {
    Add("0x");
    char digits[17] = {};
    int n = 0;
    do {
      digits[n++] = "0123456789abcdef"[value & 15];
      value >>= 4;
    } while (value != 0);
    while (n > 0) {
      const char one[] = {digits[--n], '\0'};
      Add(one);
    }
  }

 private:
  char* at_;
  char* const end_;
};

const char* SignalName(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV (an address that is not mapped)";
    case SIGBUS:
      return "SIGBUS (a bad address)";
    case SIGFPE:
      return "SIGFPE (integer division by zero)";
    case SIGILL:
      return "SIGILL (an illegal instruction)";
    default:
      return "a signal";
  }
}

void HandleFault(int signal, siginfo_t* info, void*) {
  if (current_breadcrumb == nullptr || exit_reason == nullptr) {
    ::signal(signal, SIG_DFL);
    raise(signal);
    return;
  }
  std::atomic_ref<uint32_t>(current_breadcrumb->fault_signal).store(static_cast<uint32_t>(signal));
  SignalSafeText text(exit_reason, kExitReasonBytes);
  text.Add("an operator faulted: ");
  text.Add(SignalName(signal));
  text.Add(" at ");
  text.AddHex(reinterpret_cast<uint64_t>(info->si_addr));
  _exit(kEngineFaultStatus);
}

}  // namespace

void InstallFaultHandler(const SharedRegion& region) {
  exit_reason = region.control()->exit_reason;
  struct sigaction action {};
  action.sa_sigaction = &HandleFault;
  action.sa_flags = SA_SIGINFO;
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(signal, &action, nullptr);
}

void NoteFaultContext(Breadcrumb* breadcrumb) { current_breadcrumb = breadcrumb; }

}  // namespace resident
