#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/balance/knows.h"
#include "hetermoe/data/options.h"
#include "hetermoe/exec/clock.h"
#include "hetermoe/model/expert_products.h"
#include "hetermoe/nn/optimizer.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/routing/writer.h"
#include "hetermoe/schedule/schedule.h"
#include "hetermoe/train/job/checkpoint_options.h"
#include "hetermoe/train/job/grow_options.h"
#include "hetermoe/train/job/lora_options.h"
#include "hetermoe/train/job/plan_change.h"
#include "hetermoe/train/job/rate_options.h"

// A job: one complete YAML file. Every key has a same-named flag that overrides it (--train.steps 20).
namespace hetermoe {

/// The reaction of a run when loss or gradients are NaN or infinite.
enum class OnNonfinite { kStop, kSkip };
template <>
struct EnumNames<OnNonfinite> {
  static const std::vector<std::string>& names();
};

inline constexpr i64 kMostSequences = 1'000'000;  ///< of a step

struct TrainOptions : RateOptions {
  i64 sequences = 16;
  i64 seq_len = 128;
  i64 microbatches = 4;
  i64 aux_group = 1;
  bool aux_per_layer = false;
  double router_bias_rate = 0;
  double router_z_loss = 0, router_jitter = 0, capacity_factor = 0;
  bool forced_balance = false;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, adam_eps = 1e-8;
  double max_grad_norm = 1;
  double loss_scale = 0;
  u64 seed = 1;
  i64 log_every = 10;
  i64 validate_every = 0;
  i64 validation_sequences = 32;
  bool checksum_messages = false;
  bool preflight = true;
  OnNonfinite on_nonfinite = OnNonfinite::kStop;
  i64 max_skipped = 10;
  std::vector<std::string> freeze;
  LoraOptions lora;
  double spike_sigma = 6;
  double straggler_share = 0.1;
  std::vector<PlanChange> changes;
  std::string init_from, save_hf;
  std::optional<Dtype> save_dtype;
  i64 save_hf_every = 0;
  i64 staleness = 0;
  template <class V>
  void fields(V& v) {
    length_fields(v);
    v("sequences", sequences, "sequences of one step (global batch)", between(1, kMostSequences));
    v("seq_len", seq_len, "tokens per sequence", between(1, 1e8));
    v("microbatches", microbatches, "microbatches of one step", between(1, 1e6));
    router_fields(v);
    rate_fields(v);
    v("weight_decay", weight_decay, "decoupled weight decay (not on norms)", at_least(0));
    v("beta1", beta1, "AdamW beta1", below(0, 1));
    v("beta2", beta2, "AdamW beta2", below(0, 1));
    v("adam_eps", adam_eps, "AdamW epsilon", above(0));
    v("max_grad_norm", max_grad_norm, "gradients are clipped to this global norm, 0 = off", at_least(0));
    v("loss_scale", loss_scale,
      "factor on the loss in the backward pass, 0 = adapts where a device computes in fp16, else 1",
      at_least(0));
    v("seed", seed, "seed of parameters and data order", at_least(0));
    v("log_every", log_every, "steps between log lines", at_least(1));
    v("validate_every", validate_every, "steps between validations, 0 = at the end only", at_least(0));
    v("validation_sequences", validation_sequences, "sequences per source, 0 = none", between(0, 1e6));
    v("checksum_messages", checksum_messages,
      "add a checksum to every message between devices and compare it on arrival");
    v("preflight", preflight,
      "several processes: every pair exchanges messages before the first step; a pair that is dead ends the "
      "run, a slow one is named");
    v("on_nonfinite", on_nonfinite,
      "NaN or infinite loss or gradients: stop the run, or skip the step and leave the weights as they are");
    v("max_skipped", max_skipped, "steps in a row that may be skipped before the run stops", at_least(0));
    v("freeze", freeze,
      "patterns of tensor names, with * for any text: what they name is not trained. Whole units (embedding, "
      "attention part of a layer, expert, head) are frozen");
    v("lora", lora, "adapters in place of training the model itself");
    v("spike_sigma", spike_sigma,
      "a loss this many standard deviations above the running median is reported, 0 = never", at_least(0));
    v("straggler_share", straggler_share,
      "a device whose ops take so much longer than those of its peers, as a share, is reported, 0 = never",
      at_least(0));
    v("changes", changes,
      "plans that take over in mid-run: [{step: 50, plan: other.json}] computes step 50 (1 = the first) and "
      "those after it by that plan; what its devices lack moves to them between the steps");
    v("init_from", init_from,
      "a Hugging Face folder (config.json and safetensors) from which weights start; empty = random weights. "
      "Where the job names no model, the model is that of the folder");
    v("save_hf", save_hf,
      "a new folder to which the weights are written at the end as Hugging Face has them, with the tokenizer "
      "of train.init_from; empty = none (`train` only)");
    v("save_hf_every", save_hf_every,
      "steps between such folders under way, train.save_hf/checkpoint-N after step N; 0 = at the end alone",
      at_least(0));
    v("save_dtype", save_dtype,
      "dtype of train.save_hf; null = that of each tensor of train.init_from, else that in which devices "
      "compute");
    v("staleness", staleness,
      "1: the optimizer runs on the hosts while the next step computes, with weights that lack its update "
      "(docs/staleness.md). All trained parameters must live there: plan.offload: [all]. That training "
      "converges as well is not shown",
      between(0, 1));
  }
  template <class V>
  void router_fields(V& v) {
    v("aux_group", aux_group, "sequences over which the load-balancing loss is computed, 0 = the whole step",
      at_least(0));
    v("aux_per_layer", aux_per_layer,
      "the load-balancing loss is that of each MoE layer, averaged over layers, as Megatron-Core balances "
      "each "
      "layer; false: of all layers together, as in transformers, where two uneven layers may look even");
    v("router_bias_rate", router_bias_rate,
      "after a step, e_score_correction_bias of an expert grows by so much where it got fewer tokens than "
      "the mean of its layer, and shrinks where it got more (DeepSeek-V3; 0.001 there), 0 = off",
      between(0, 1));
    v("router_z_loss", router_z_loss,
      "coefficient of the z-loss, the mean over tokens of logsumexp(logits)^2 of each router (ST-MoE; 0.001 "
      "there), 0 = off",
      at_least(0));
    v("router_jitter", router_jitter,
      "in training, inputs of routers are multiplied by random numbers between 1 - this and 1 + this (Switch "
      "Transformer; 0.01 there), 0 = off",
      below(0, 1));
    v("capacity_factor", capacity_factor,
      "in training, an expert takes so many times its even share of each sequence's choices; those that come "
      "later in the sequence are dropped. 0 = all are taken",
      between(0, 1e6));
    v("forced_balance", forced_balance,
      "experts are chosen in turn in place of by routers, for measurements: every expert gets as many "
      "copies");
  }
};

/// How a strategy makes the plan; `file` takes a finished plan instead.
struct PlanOptions : PlanChoices, CutOptions {
  std::string file;
  std::vector<DeviceId> attention, experts;
  std::vector<double> attention_weights, expert_weights;
  std::vector<i64> experts_moved;
  i32 window = -1;
  std::string recompute_layers;
  bool node_dedup = false, shard_weights = false;
  std::vector<std::string> offload;
  std::optional<Dtype> attention_dtype, expert_dtype;
  std::optional<Wire> wire_dtype, wire_backward;
  template <class V>
  void fields(V& v) {
    v("file", file, "a plan.json to run instead of asking the strategy");
    v("attention", attention, "devices that compute attention; empty = the fastest type", at_least(0));
    v("experts", experts, "devices that own experts; empty = the other types", at_least(0));
    v("attention_weights", attention_weights, "speeds by which sequences are shared; empty = equally",
      between(1e-30, 1e30));
    v("expert_weights", expert_weights, "speeds by which experts are shared; empty = equally",
      between(1e-30, 1e30));
    v("experts_moved", experts_moved,
      "per layer: experts that each expert device gives to attention devices (Asym-EA)", at_least(0));
    v("window", window,
      "microbatches in flight, in a pipeline those that go through a stage together; 0 = all, -1 = the "
      "strategy's own",
      at_least(-1));
    CutOptions::fields(v);
    step_fields(v);
    v("node_dedup", node_dedup,
      "send a token once per node, where a device passes it on to the other owners of its experts "
      "(docs/schedule.md)");
    v("recompute_layers", recompute_layers,
      "layers that differ from plan.recompute, as ranges: \"0-3:off,4-7:local\"");
    state_fields(v);
    v("shard_weights", shard_weights,
      "as shard_optimizer, and weights and gradients of embedding, attention parts and head, which are "
      "gathered for each use (FSDP, ZeRO-3)");
    v("offload", offload,
      "what lives in the main memory of the devices' nodes: all, weights, optimizer, saved, or PART.weights, "
      "PART.optimizer of embed, attention, experts, head; \"layers 8-15:experts.weights\" or \"devices "
      "4-7:optimizer\" for some alone");
    slot_fields(v);
    network_fields(v);
    v("attention_dtype", attention_dtype, "compute dtype of devices with attention");
    v("expert_dtype", expert_dtype, "compute dtype of devices with experts only");
    v("wire_dtype", wire_dtype,
      "how rows travel; fp8_row and fp8_group are for rows of experts, the rest travels in bf16 then "
      "(docs/precision.md)");
    v("wire_backward", wire_backward, "how gradients of rows travel. null = as plan.wire_dtype says");
  }
};

struct ClockOptions {
  std::optional<ClockKind> kind;
  double pace_scale = 0;
  double max_cpu_share = 0.25;
  std::optional<Dtype> emulated_dtype;
  double watchdog_s = 300;
  i32 threads = 0;
  template <class V>
  void fields(V& v) {
    v("kind", kind,
      "real: as fast as it goes; virtual: emulated times, nothing waits; paced: emulated cluster. null = "
      "virtual where run.device is cpu and the cluster has GPUs, else real");
    v("pace_scale", pace_scale, "paced: real seconds per emulated second, 0 = chosen from the first steps",
      at_least(0));
    v("max_cpu_share", max_cpu_share, "paced: processor time may be this share of the emulated step",
      between(0.01, 1));
    v("emulated_dtype", emulated_dtype,
      "dtype of compute and transfers on the emulated devices, whatever the numerics here use; null = the "
      "plan's where it has 16 bits, else fp16");
    v("watchdog_s", watchdog_s, "a run in which no op ends for so long is stopped as hung", above(0));
    v("threads", threads, "intra-op threads of a compute lane, 0 = the machine's cores over the devices",
      at_least(0));
  }
};

struct RunOptions {
  std::string device = "cpu";
  std::string transport = "auto";
  bool tf32 = true;
  std::optional<bool> deterministic;
  bool expandable_segments = true;
  ExpertProducts expert_products = ExpertProducts::kAuto;
  double memory_limit_gib = 0;
  double silence_s = 20, gather_limit_s = 1800;
  template <class V>
  void fields(V& v) {
    v("device", device,
      "where the work is done: cpu; cuda: the GPUs in turn (several processes: one each, over NCCL); cuda:N: "
      "one GPU");
    v("transport", transport,
      "how messages travel between devices: in-process, mpi, nccl; auto = what serves them (doctor lists)");
    v("tf32", tf32,
      "on GPUs: products of fp32 matrices are computed in TF32: factors have 10 bits of mantissa");
    v("deterministic", deterministic,
      "on GPUs: only kernels that give the same bits every time, which are slower; an operator without one "
      "ends the run. null = for verify only");
    v("expandable_segments", expandable_segments,
      "on GPUs: libtorch's allocator grows its blocks: sizes that change leave no gaps");
    v("expert_products", expert_products,
      "on GPUs: products of a layer's experts in bf16: each by itself, or grouped in one kernel. auto = what "
      "the profile of the device's type found faster, else grouped on GPUs of compute capability 9.x and "
      "10.x");
    v("memory_limit_gib", memory_limit_gib,
      "GiB that a device may hold, counted tensor by tensor; an op that needs more ends the run. 0 = no "
      "limit",
      at_least(0));
    v("silence_s", silence_s,
      "processes that meet at a store (torchrun): one that shows no sign of life for so long is dead, which "
      "ends the run",
      between(1, 3600));
    v("gather_limit_s", gather_limit_s,
      "processes that meet at a store: so long they wait for one that lives but does not come",
      between(1, 1e6));
  }
};

/// The treatment of tokens whose choice a replayed trace lacks.
enum class ReplayGaps { kRefuse, kChoose };
template <>
struct EnumNames<ReplayGaps> {
  static const std::vector<std::string>& names() {
    static const std::vector<std::string> all = names_of_all<ReplayGaps>({"refuse", "choose"});
    return all;
  }
};

struct RoutingOptions {
  std::string record;
  std::string replay;
  ReplayGaps replay_gaps = ReplayGaps::kRefuse;
  i64 every = 1;
  TraceDetail detail = TraceDetail::kChoices;
  bool weights = false;
  template <class V>
  void fields(V& v) {
    v("record", record,
      "`train` only: a file for a trace of the routers' choices (docs/routing.md), with several processes a "
      "folder with one of each; empty = none");
    v("every", every, "steps from one that is recorded to the next", at_least(1));
    v("detail", detail,
      "choices: which experts each token chose; counts: how many tokens of each sequence chose each expert");
    v("weights", weights, "record the routing weights, too");
    v("replay", replay,
      "a trace whose choices are taken in place of the routers': the same experts for the same sequences of "
      "the data; weights and gradients are of today. Empty = the routers choose");
    v("replay_gaps", replay_gaps,
      "sequences or tokens that the replayed trace lacks: refuse ends the run before the step; choose leaves "
      "them to the routers");
  }
};

/// Owners of experts that change between steps.
struct BalancerOptions {
  std::string name = "none";
  i64 every = 10, history = 10, horizon = 0, replicas = 0, guests = 2, guest_depth = 2;
  std::optional<i64> guest_cost;
  std::string topology, groups = "node", parts = "reorder,samples,guests,split";
  double load_cap = 1.1;
  Knows knows = Knows::kHistory;
  bool measure = false, probe = false, guard = true;
  bool on() const { return name != "none"; }
  template <class V>
  void fields(V& v) {
    v("name", name,
      "`train` only: who chooses owners of experts anew between steps, by the loads of the steps before: "
      "lpt, eplb, lplb, relibra, locality (docs/balancing.md); none = those of the plan stay. With lplb the "
      "first plan "
      "has its copies already. After a + how copies are divided in a step: none+guests, relibra+shares");
    v("every", every, "steps from one look at the owners to the next", at_least(1));
    v("history", history, "steps over which loads are averaged, newer ones weigh more", at_least(1));
    v("guard", guard,
      "owners change only where that shortens the simulated step by over 0.5 % and pays for the move");
    v("horizon", horizon,
      "steps in which a move must pay for itself (with guard), 0 = until owners are looked at again",
      at_least(0));
    v("replicas", replicas, "copies of experts in a layer beyond one of each, for balancers that make some",
      at_least(0));
    v("knows", knows,
      "what owners and guests are chosen by: history (the steps before, and within a step a tally), or "
      "foresight (the choices of the step that comes, with routing.replay or probe)");
    v("probe", probe,
      "with foresight: a forward pass before each step finds its choices, which the step then replays");
    v("guests", guests, "slots of each owner for experts that others lend it for one exchange, with relibra",
      between(0, 4096));
    v("guest_depth", guest_depth, "exchanges whose guests may be on a device at once", between(1, 64));
    v("guest_cost", guest_cost,
      "copies that a guest must take off the latest device; null = as many as it costs by the cost model",
      between(0, 1e9));
    v("measure", measure,
      "devices that take longer than their peers in the steps of the run get less work, beyond what the "
      "cluster file and the cost model say. Under the real clock a run then depends on what was measured");
    v("topology", topology,
      "who copies from whom with lplb: cube, hypercube, ring, torus, torus:MxN, or columns as [[1,2,3,0]]; "
      "empty = torus where the number of owners has two divisors above 2, else ring");
    v("parts", parts,
      "of relibra: reorder (owners between steps), samples (the order of sequences, with foresight or by "
      "their domains), guests, split (copies divided by the counts of an exchange)");
    v("groups", groups,
      "where sequences are ordered (locality, relibra): devices that share fast links: node, device, or "
      "lists as [[0,1],[2,3]]");
    v("load_cap", load_cap, "with locality: most time of a device group over a perfect division, 0 = any",
      at_least(0));
  }
};

/// Values that the job does not have and that follow from other values of it; not keys of a job themselves.
struct UsualChoices {
  bool model = false, cluster = false, strategy = false, learning_rate = false;
};

struct Job {
  std::string model = "demo";
  std::string cluster = "demo";
  std::string strategy = "zebra";
  std::string output = "out/run";
  TrainOptions train;
  PlanOptions plan;
  RunOptions run;
  ClockOptions clock;
  CheckpointOptions checkpoint;
  RoutingOptions routing;
  BalancerOptions balancer;
  GrowOptions grow;
  DataOptions data;
  UsualChoices usual;
  template <class V>
  void fields(V& v) {
    v("model", model, "a name of configs/models, a config.json or its folder");
    v("cluster", cluster, "a name of configs/clusters, a YAML file, or a hostfile (HOST slots=N type=NAME)");
    v("strategy", strategy,
      "who fills the plan: single, ep, ep-overlap, dist-ep, zebra, pp-ep, pp-zebra, af-pipe, sp-ep, "
      "roundpipe. "
      "Where the job gives none for a model without experts, it is ep");
    v("output", output, "folder of results");
    v("train", train, "the training run");
    v("plan", plan, "the plan");
    v("run", run, "the machine");
    v("clock", clock, "real or emulated time");
    v("checkpoint", checkpoint, "what survives the end of a run (`train` only)");
    v("routing", routing, "the routing trace");
    v("balancer", balancer, "who owns which experts, between steps");
    v("grow", grow, "more experts in mid-run");
    v("data", data, "what is learned");
  }
};

/// Every key of a job, described; and a job with all of them. Asked for here and not by document_fields and
/// write_fields: compiling these for a job takes seconds in each file.
const std::vector<FieldDoc>& job_fields();
/// The place of a key in to_json(job): /train/steps.
Json::json_pointer pointer_of(const FieldDoc& field);
Json to_json(const Job& job);

/// Reads a YAML file and applies overrides such as {"train.steps", "20"}. Throws ConfigError or IoError.
Job load_job(const std::string& path, const std::vector<std::pair<std::string, std::string>>& overrides);
/// As load_job, of a text that was read from `path`.
Job parse_job(const std::string& yaml, const std::string& path,
              const std::vector<std::pair<std::string, std::string>>& overrides);
/// As load_job, from nothing but overrides.
Job job_from_overrides(const std::vector<std::pair<std::string, std::string>>& overrides);

/// The job as one of several compared strategies runs it. Keys that only the other strategies use are
/// dropped: plan.experts, experts_moved, and weights of other devices. All strategies are compared on the
/// same devices. So a strategy that uses all devices alike gets the devices of plan.attention and
/// plan.experts together as plan.attention. A strategy that uses one device gets the first with attention.
/// Throws ConfigError.
Job job_of_strategy(const Job& job, const std::string& strategy, const std::vector<std::string>& compared,
                    const Cluster& cluster);

/// All faults of a plan for this job, in words: against model and cluster, and in the shape of a step.
std::vector<std::string> plan_faults(const Job& job, const Plan& plan, const ModelConfig& model,
                                     const Cluster& cluster);

/// The plan of a job: the file it names, or what its strategy makes. Checked against model and cluster;
/// throws ConfigError with all faults.
Plan make_job_plan(const Job& job, const ModelConfig& model, const Cluster& cluster);

/// The parts that the job adds to a training step or leaves out. Throws ConfigError when train.freeze or
/// train.lora does not fit.
StepOptions step_options(const Job& job, const ModelConfig& model);

/// The plan as the emulated cluster runs it: its dtypes are those of clock.emulated_dtype, because the
/// numerics here use fp32 where GPUs would not.
Plan emulated_plan(const Job& job, const Plan& plan);

}  // namespace hetermoe
