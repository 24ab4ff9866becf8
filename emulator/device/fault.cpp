// What a host access to device memory says before the process dies of it.
#include "device.h"

#include <csignal>
#include <cstring>
#include <ucontext.h>
#include <unistd.h>

namespace npu {
namespace {

struct sigaction previous_action;

// A tagged pointer: the device bit, and otherwise an address of the lower half.
bool looks_like_device_address(uint64_t value) {
  return (value & kDeviceBit) != 0 && (value & ~kDeviceBit) >= 0x10000 && (value & ~kDeviceBit) < (uint64_t{1} << 48);
}

// The address that the failing instruction used. A 64-bit x86 with four-level paging does not say (it reports a
// general protection fault at address 0, since an address with bit 52 is not canonical); then one of the registers
// holds it.
uint64_t device_address(const siginfo_t* info, const void* context) {
  const auto reported = reinterpret_cast<uint64_t>(info->si_addr);
  if (looks_like_device_address(reported)) {
    return reported;
  }
#if defined(__x86_64__)
  const auto* state = static_cast<const ucontext_t*>(context);
  if (info->si_code > 0 && reported == 0) {
    for (int number = REG_R8; number <= REG_RSP; ++number) {
      const auto value = static_cast<uint64_t>(state->uc_mcontext.gregs[number]);
      if (looks_like_device_address(value)) {
        return value;
      }
    }
  }
#else
  (void)context;
#endif
  return 0;
}

// Only calls that are allowed in a signal handler from here on.
void print(const char* text) {
  (void)!write(STDERR_FILENO, text, std::strlen(text));
}
void print_hexadecimal(uint64_t value) {
  char digits[19] = "0x0000000000000000";
  for (int place = 17; place >= 2; --place, value >>= 4) {
    digits[place] = "0123456789abcdef"[value & 15];
  }
  print(digits);
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (const uint64_t address = device_address(info, context)) {
    print("\nnpu: host code read or wrote device memory at ");
    print_hexadecimal(address);
    print(": an npu tensor's data pointer was used on the host. Copy the tensor to the CPU first (.cpu()).\n");
  }
  // The instruction runs again and fails again, now under the handler that was there before (Python's faulthandler,
  // if it is on, prints the stack) or under none.
  sigaction(SIGSEGV, &previous_action, nullptr);
  if (info->si_code <= 0) {  // sent by kill(): nothing would fail again
    raise(signal);
  }
}

}  // namespace

void install_fault_handler() {
  static bool installed = false;
  if (installed) {
    return;
  }
  struct sigaction action;
  std::memset(&action, 0, sizeof(action));
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  installed = sigaction(SIGSEGV, &action, &previous_action) == 0;
}

}  // namespace npu
