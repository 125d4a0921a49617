// Resident equals streaming in every bit, whatever the capacity, the policy, the engine and the
// number of threads.
#include "sparseflow/moe_forward.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "check.h"
#include "io/fault_script.h"
#include "sfi_builder.h"
#include "sparseflow/errors.h"
#include "sparseflow/resident_source.h"
#include "sparseflow/streaming_source.h"

using namespace sparseflow;
using namespace sparseflow::test;

namespace {

constexpr int64_t kTopK = 3;
constexpr int32_t kLayer = 1;

// The inputs of one call; the shared expert's weights are those of expert 0 of layer 0.
struct Inputs {
  Inputs(const SfiShape& shape, int64_t tokens, bool with_shared)
      : num_tokens(tokens), has_shared(with_shared) {
    std::mt19937 random(11 + static_cast<unsigned>(tokens));
    const auto uniform = [&] { return static_cast<float>(random() % 2001) / 1000.0f - 1.0f; };
    for (int64_t i = 0; i < tokens * shape.hidden_size; ++i) x.push_back(uniform());
    for (int64_t i = 0; i < shape.hidden_size; ++i) gate_logit.push_back(uniform());
    for (int64_t token = 0; token < tokens; ++token) {
      auto id = static_cast<int32_t>(random() % 3);
      for (int64_t k = 0; k < kTopK; ++k) {
        ids.push_back(id);
        weights.push_back(uniform());
        id += 1 + static_cast<int32_t>(random() % 3);
      }
    }
  }

  std::vector<float> run(Runtime& runtime, ExpertSource& source, const SharedExpert& shared) const {
    std::vector<float> out(x.size(), 0.5F);
    const NativeCall guard(runtime);
    moe_forward(runtime, source,
                {kLayer, x.data(), num_tokens, ids, weights, kTopK, has_shared ? &shared : nullptr,
                 out.data()});
    return out;
  }

  int64_t num_tokens;
  bool has_shared;
  std::vector<float> x, gate_logit, weights;
  std::vector<int32_t> ids;
};

struct Setup {
  explicit Setup(WeightFormat format) {
    shape.num_layers = 2;
    shape.num_experts = 10;
    shape.hidden_size = 88;
    shape.moe_intermediate_size = 24;
    shape.format = format;
    paths = write_experts(directory, shape);
    resident = std::make_unique<ResidentSource>(paths, create_read_engine("pread", {2, true}));
    for (int32_t layer = 0; layer < 2; ++layer) resident->load_layer(layer);
    blob_bytes = resident->geometry().blob_bytes;
    shared_lease = resident->acquire(0, std::vector<int32_t>{0});
    for (const auto& [tokens, with_shared] :
         {std::pair{1, true}, {1, false}, {7, true}, {150, true}}) {
      inputs.emplace_back(shape, tokens, with_shared);
    }
  }

  SharedExpert shared(const Inputs& call) const {
    const ExpertView view = expert_view(resident->geometry(), shared_lease.blob(0));
    return {view.gate,
            view.up,
            view.down,
            {WeightFormat::kFloat32, 1, shape.hidden_size, call.gate_logit.data(), nullptr}};
  }

  std::vector<std::vector<float>> expected() {
    Runtime runtime("portable", 1);
    std::vector<std::vector<float>> outs;
    for (const Inputs& call : inputs) outs.push_back(call.run(runtime, *resident, shared(call)));
    return outs;
  }

  std::unique_ptr<StreamingSource> stream(int64_t slots, const std::string& policy,
                                          std::shared_ptr<ReadEngine> engine) const {
    StreamingOptions options;
    options.capacity_bytes = slots * blob_bytes;
    options.num_experts_per_tok = kTopK;
    options.policy = policy;
    return std::make_unique<StreamingSource>(paths, options, std::move(engine));
  }

  TemporaryDirectory directory;
  SfiShape shape;
  std::vector<std::string> paths;
  std::unique_ptr<ResidentSource> resident;
  ExpertLease shared_lease;
  int64_t blob_bytes;
  std::vector<Inputs> inputs;
};

bool is_same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void streaming_equals_resident(WeightFormat format) {
  Setup setup(format);
  const auto expected = setup.expected();
  for (const float value : expected.back())
    check(std::isfinite(value), "the expected result is finite");
  for (const int threads : {1, 2, 3}) {
    Runtime runtime("auto", threads);
    for (const int64_t slots : {2, 3, 6, 9, 17, 20}) {
      for (const std::string& policy : policy_names()) {
        for (const std::string& engine : read_engine_names()) {
          auto source = setup.stream(slots, policy, create_read_engine(engine, {3, true}));
          for (size_t i = 0; i < expected.size(); ++i) {
            const auto out = setup.inputs[i].run(runtime, *source, setup.shared(setup.inputs[i]));
            check(is_same(out, expected[i]), std::to_string(slots) + " slots, " + policy + ", " +
                                                 engine + ", call " + std::to_string(i));
            check(source->active_leases() == 0, "leases 0");
          }
          source->cache().check_invariants();
        }
      }
    }
  }
}

void failed_reads_leave_no_lease_and_the_next_call_is_right() {
  Setup setup(WeightFormat::kInt8);
  const auto expected = setup.expected();
  Runtime runtime("auto", 2);
  for (const int64_t slots : {2, 6, 17}) {
    for (size_t i = 0; i < expected.size(); ++i) {
      for (int failing = 0; failing < kTopK; ++failing) {
        const auto script = std::make_shared<FaultScript>();
        auto source = setup.stream(slots, "scored", create_fault_engine(script, {2, true}));
        script->fail(failing, EIO);
        check_throws<StorageError>(
            [&] { setup.inputs[i].run(runtime, *source, setup.shared(setup.inputs[i])); },
            "of layer 1");
        check(source->active_leases() == 0, "leases 0 after a failure");
        source->cache().check_invariants();
        script->flip_bit(0);
        const auto flaky = [&] {
          return setup.inputs[i].run(runtime, *source, setup.shared(setup.inputs[i]));
        };
        try {
          check(is_same(flaky(), expected[i]), "an orphan took the flipped bit");
        } catch (const ContainerError&) {
          check(source->active_leases() == 0, "leases 0 after damage");
        }
        script->clear();
        check(is_same(flaky(), expected[i]), "the next call is right");
      }
    }
  }
}

void slow_reads_change_no_bit() {
  Setup setup(WeightFormat::kBf16);
  const auto expected = setup.expected();
  Runtime runtime("auto", 2);
  std::mt19937 random(4);
  const auto script = std::make_shared<FaultScript>();
  auto source = setup.stream(7, "lru", create_fault_engine(script, {3, true}));
  for (int round = 0; round < 5; ++round) {
    for (int call = 0; call < 12; ++call) script->delay(call, random() % 3000);
    for (size_t i = 0; i < expected.size(); ++i) {
      check(is_same(setup.inputs[i].run(runtime, *source, setup.shared(setup.inputs[i])),
                    expected[i]),
            "same bits");
    }
  }
  check(source->counters().read_wait_seconds > 0, "there was waiting");
}

void a_capacity_that_changes_meanwhile_changes_no_bit() {
  Setup setup(WeightFormat::kInt8);
  const auto expected = setup.expected();
  Runtime runtime("auto", 2);
  for (const int64_t slots : {3, 9, 17, 20}) {
    auto source = setup.stream(slots, "scored", create_read_engine("pread", {3, true}));
    const int64_t blob_bytes = source->geometry().blob_bytes;
    std::atomic<bool> stop{false};
    std::thread resizer([&] {
      std::mt19937 random(3);
      while (!stop) {
        source->resize(static_cast<int64_t>(random() % 24) * blob_bytes);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      }
    });
    bool is_right = true;
    for (int round = 0; round < 10; ++round) {
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto out = setup.inputs[i].run(runtime, *source, setup.shared(setup.inputs[i]));
        is_right = is_right && is_same(out, expected[i]) && source->active_leases() == 0;
      }
    }
    stop = true;
    resizer.join();
    source->cache().check_invariants();
    check(is_right, std::to_string(slots) + " slots");
  }
}

void ids_that_are_not_ascending_are_refused_before_anything_is_read() {
  Setup setup(WeightFormat::kInt8);
  Runtime runtime("auto", 1);
  auto source = setup.stream(7, "scored", create_read_engine("pread", {1, true}));
  for (const auto& ids : {std::vector<int32_t>{0, 1, 10}, {-1, 0, 1}, {2, 2, 3}, {3, 2, 4}}) {
    Inputs call(setup.shape, 1, false);
    call.ids = ids;
    check_throws<ConfigError>([&] { call.run(runtime, *source, {}); }, "ascending and distinct");
  }
  check(source->counters().misses == 0 && source->active_leases() == 0, "nothing was leased");
}

}  // namespace

int main() {
  return run_facts(
      {{"streaming equals resident, int8", [] { streaming_equals_resident(WeightFormat::kInt8); }},
       {"streaming equals resident, bf16", [] { streaming_equals_resident(WeightFormat::kBf16); }},
       {"failed reads leave no lease and the next call is right",
        failed_reads_leave_no_lease_and_the_next_call_is_right},
       {"slow reads change no bit", slow_reads_change_no_bit},
       {"a capacity that changes meanwhile changes no bit",
        a_capacity_that_changes_meanwhile_changes_no_bit},
       {"ids that are not ascending are refused before anything is read",
        ids_that_are_not_ascending_are_refused_before_anything_is_read}});
}
