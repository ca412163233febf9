/// The boundary of the C functions: exceptions become statuses, and their messages this thread's last error.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "error.h"

namespace gemmill {

/// Keeps the message of a failed call for gemmill_last_error. It never throws.
void keep_message(const char* message) noexcept;

/// Runs a function and returns the status of its outcome.
template <typename Function>
gemmill_status guarded(Function&& function) noexcept {
  try {
    function();
    return GEMMILL_OK;
  } catch (const Error& error) {
    keep_message(error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    keep_message("host memory is exhausted");
    return GEMMILL_INTERNAL;
  } catch (const std::exception& error) {
    keep_message(error.what());
    return GEMMILL_INTERNAL;
  } catch (...) {
    keep_message("an unknown error of libgemmill");
    return GEMMILL_INTERNAL;
  }
}

}  // namespace gemmill
