// Threads that the ending interpreter ends: up to Python 3.13 those that want the GIL then.
//
// pthread_exit unwinds their stacks, through Python's frames and then through ours, whose
// destructors would run without the GIL and whose noexcept would end the process. The unwinder asks
// each frame's personality routine, so the one that all frames of this library name, nanobind's
// too, is wrapped here (by the linker: --wrap): a thread stays at the first of our frames that has
// anything to clean up. The process is about to end.
#include <unistd.h>
#include <unwind.h>

extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions,
                                                _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception,
                                                _Unwind_Context* context);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions,
                                                _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception,
                                                _Unwind_Context* context) {
  while ((actions & _UA_FORCE_UNWIND) != 0) pause();
  return __real___gxx_personality_v0(version, actions, kind, exception, context);
}

}  // extern "C"
