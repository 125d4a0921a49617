// Parts of the core that only tests reach from Python: read engines that fail on command, single
// reads, eviction policies.

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "bindings.h"
#include "io/fault_script.h"
#include "io/read_error.h"
#include "sparseflow/errors.h"
#include "sparseflow/eviction_policy.h"
#include "sparseflow/expert_cache.h"
#include "sparseflow/read_engine.h"

namespace sparseflow {
namespace {

struct AlignedBytes {
  explicit AlignedBytes(int64_t n) : nbytes(n), data(map_aligned(n)) {}
  ~AlignedBytes() { unmap_aligned(data, nbytes); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  int64_t nbytes;
  std::byte* data;
};

// Ends one read on the calling thread.
class OneRead final : public ReadSink {
 public:
  void read_done(const ReadRequest&, const ReadResult& result) noexcept override {
    done_.set_value(result);
  }
  ReadResult wait() { return done_.get_future().get(); }

 private:
  std::promise<ReadResult> done_;
};

nb::bytes read_range(ReadEngine& engine, const std::string& path, int64_t offset, int64_t nbytes) {
  if (offset < 0 || nbytes < 1) throw ConfigError("offset, nbytes: must not be negative or empty");
  const AlignedBytes buffer(nbytes);
  {
    const nb::gil_scoped_release release;
    OneRead read;
    engine.submit({engine.open(path), offset, nbytes, buffer.data, &read, 0});
    if (const ReadResult result = read.wait(); result.error_number != 0) {
      throw_storage_error("cannot read", path, result.error_offset, result.error_number);
    }
  }
  return nb::bytes(buffer.data, static_cast<size_t>(nbytes));
}

std::vector<int32_t> ids_of(const Array<const int32_t, nb::ndim<1>>& ids) {
  return {ids.data(), ids.data() + ids.size()};
}

void bind_policy(nb::module_& testing) {
  nb::class_<EvictionPolicy>(testing, "EvictionPolicy", "Ranks experts; see eviction_policy.h.")
      .def_prop_ro("name", &EvictionPolicy::name)
      .def(
          "observe",
          [](EvictionPolicy& p, int32_t layer, const Array<const int32_t, nb::ndim<1>>& experts) {
            p.observe(layer, ids_of(experts));
          },
          nb::arg("layer"), nb::arg("experts"))
      .def(
          "score",
          [](const EvictionPolicy& p, int32_t layer, int32_t expert) {
            return p.score({layer, expert});
          },
          nb::arg("layer"), nb::arg("expert"));
  testing.def("create_policy", &create_policy, nb::arg("name"), nb::arg("num_layers"),
              nb::arg("num_experts"));
}

}  // namespace

void bind_testing(nb::module_& m) {
  nb::module_ testing =
      m.def_submodule("testing", "Read engines that fail on command. For tests alone.");
  nb::class_<FaultScript>(
      testing, "FaultScript",
      "What goes wrong in which read system call; `call` counts from now, 0 is the next.")
      .def(nb::init<>())
      .def("fail", &FaultScript::fail, nb::arg("call"), nb::arg("errno"),
           "The call fails with this errno.")
      .def("shorten", &FaultScript::shorten, nb::arg("call"), nb::arg("nbytes"),
           "It reads at most nbytes.")
      .def(
          "delay",
          [](FaultScript& s, int64_t call, double seconds) {
            s.delay(call, static_cast<int64_t>(seconds * 1e6));
          },
          nb::arg("call"), nb::arg("seconds"), "It takes so much longer.")
      .def("flip_bit", &FaultScript::flip_bit, nb::arg("call"),
           "One bit of what it reads is wrong.")
      .def(
          "always",
          [](FaultScript& s, int error_number, int64_t short_bytes, double delay_seconds,
             bool flips_bit) {
            s.always(
                {error_number, short_bytes, static_cast<int64_t>(delay_seconds * 1e6), flips_bit});
          },
          nb::arg("errno") = 0, nb::arg("nbytes") = -1, nb::arg("seconds") = 0.0,
          nb::arg("flip_bit") = false, "Every call without a fault of its own, until clear().")
      .def("clear", &FaultScript::clear)
      .def_prop_ro("num_calls", &FaultScript::num_calls);
  testing.def(
      "fault_engine",
      [](const std::shared_ptr<FaultScript>& script, int queue_depth, bool direct_io,
         const std::string& engine) {
        return create_fault_engine(script, {queue_depth, direct_io}, engine);
      },
      nb::arg("script"), nb::arg("queue_depth") = 8, nb::arg("direct_io") = true,
      nb::arg("engine") = "pread",
      "A pread or io_uring engine whose system calls follow the script.");
  testing.def("read_range", &read_range, nb::arg("engine"), nb::arg("path"), nb::arg("offset"),
              nb::arg("nbytes"), "One read through an engine. StorageError.");
  bind_policy(testing);
}

}  // namespace sparseflow
