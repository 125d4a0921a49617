// The one place where C++ exceptions become the classes of sparseflow/errors.py.

#include "sparseflow/errors.h"

#include <nanobind/stl/string.h>

#include <exception>
#include <system_error>

#include "bindings.h"

namespace sparseflow {
namespace {

nb::object error_class(const char* name) {
  return nb::module_::import_("sparseflow.errors").attr(name);
}

void raise(const char* name, const std::exception& error) {
  PyErr_SetString(error_class(name).ptr(), error.what());
}

void raise_instance(const nb::object& instance) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(instance.ptr())), instance.ptr());
}

void translate(const std::exception_ptr& pointer, void* /*payload*/) {
  try {
    std::rethrow_exception(pointer);
  } catch (const ConfigError& error) {
    raise("ConfigError", error);
  } catch (const ContainerError& error) {
    raise("ContainerError", error);
  } catch (const UnsupportedError& error) {
    raise("UnsupportedError", error);
  } catch (const BudgetError& error) {
    raise_instance(error_class("BudgetError")(error.what(),
                                              nb::arg("needed_bytes") = error.needed_bytes,
                                              nb::arg("available_bytes") = error.available_bytes));
  } catch (const StorageError& error) {
    raise_instance(error_class("StorageError")(error.what(), nb::arg("path") = error.path,
                                               nb::arg("offset") = error.offset,
                                               nb::arg("errno") = error.error_number));
  } catch (const std::system_error& error) {
    raise_instance(
        error_class("StorageError")(error.what(), nb::arg("errno") = error.code().value()));
  }
}

}  // namespace

void register_errors() { nb::register_exception_translator(translate); }

}  // namespace sparseflow
