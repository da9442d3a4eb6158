#include "hetermoe/cli/command.h"

namespace hetermoe {

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"plan", "who should do what: the best plan for a model on a cluster, and what else was tried",
       "hetermoe plan --model d1 --cluster o1 --seq 8192 --sequences 48 -o plan.json", make_plan},
      {"train", "train a model by one strategy, on GPUs, on processors or on emulated devices",
       "hetermoe train configs/jobs/demo.yaml --strategy zebra --train.steps 20", make_train},
      {"launch",
       "start a command, perhaps by mpirun, and a run again from its newest checkpoint when it fails",
       "hetermoe launch --restarts 3 -- mpirun -np 4 hetermoe train job.yaml --checkpoint.every 100\n"
       "  hetermoe launch --restarts 3 --replan -- mpirun -np 4 hetermoe train job.yaml\n"
       "  hetermoe launch --hostfile hosts -- hetermoe train job.yaml --cluster hosts",
       make_launch, false, true},
      {"compare", "several strategies on one model and cluster: predicted and executed",
       "hetermoe compare configs/jobs/demo.yaml --strategies zebra,ep,dist-ep,single --timed-steps 3\n"
       "  hetermoe compare --model d1 --cluster o1 --seq 4096,8192 --strategy zebra,af-pipe,ep,pp-ep,best\n"
       "  hetermoe compare configs/jobs/demo.yaml --balancers none,lpt,eplb --routing out/demo.routes",
       make_compare, true},
      {"data", "what a job trains on: sources, documents, lengths, a decoded sequence; tokens to files",
       "hetermoe data configs/jobs/demo.yaml\n  hetermoe data --data.paths docs/ --write out/docs", make_data,
       true},
      {"generate", "what a model says: text that goes on from a prompt",
       "hetermoe generate out/tour --prompt 'def main(' --tokens 200 --temperature 0.8 --top-p 0.95",
       make_generate, true},
      {"verify", "check loss and every gradient of a plan against the single-device reference, in fp64",
       "hetermoe verify configs/jobs/demo.yaml --strategy zebra --train.seq_len 32\n"
       "  hetermoe verify out/tour/job.json --step 15",
       make_verify, true},
      {"simulate", "predict one step of a job or of a plan: time, who works, who waits, memory",
       "hetermoe simulate configs/jobs/demo.yaml --strategy ep --routing zipf:1.2 --output out/ep",
       make_simulate},
      {"routing", "routing traces: which experts tokens chose, how uneven that is, what it costs",
       "hetermoe routing make --model tiny --gini 0.24 -o made.routes\n"
       "  hetermoe routing analyse made.routes --json\n  hetermoe routing make --help",
       make_routing, true},
      {"profile", "measure one device: attention, experts, copies and transfers by size, for the cost model",
       "hetermoe profile --model demo --seq 64,256 --rows 16,128,1024 -o cpu.json", make_profile, true},
      {"inspect",
       "what a model, its weights or a cluster is: parameters, FLOPs and memory per part, tensors, devices",
       "hetermoe inspect mixtral-8x7b --seq 4096\n  hetermoe inspect --cluster o1\n  hetermoe inspect "
       "~/models/OLMoE-1B-7B-0924",
       make_inspect},
      {"convert", "a Hugging Face folder to another one: dtype, layout of the experts, size of the files",
       "hetermoe convert ~/models/OLMoE-1B-7B-0924 out/olmoe-fp16 --dtype fp16 --verify", make_convert, true},
      {"upcycle",
       "more experts: copies of those of a Hugging Face folder or of a run; of a dense model, new ones",
       "hetermoe upcycle out/tour -o out/grown --factor 2 --mode wide-k --measure", make_upcycle, true},
      {"report", "timelines to one HTML page that opens from a file, and to a Perfetto trace",
       "hetermoe report out/demo/train/predicted.json --with out/demo/train/timeline.json -o report.html "
       "--trace trace.json",
       make_report},
      {"watch", "a page that shows a run as it goes on: progress, curves, warnings, at the end the report",
       "hetermoe watch out/demo\n  hetermoe watch out/demo --port 0", make_watch, true},
      {"doctor", "what this build and this machine can do; whether all processes of a run hear each other",
       "hetermoe doctor\n  hetermoe doctor --cluster demo\n  mpirun -np 4 hetermoe doctor --cluster job.yaml",
       make_doctor},
      {"options", "every key of a job, or the resolved configuration of one",
       "hetermoe options\n  hetermoe options configs/jobs/demo.yaml --train.steps 20", make_options},
  };
  return all;
}

}  // namespace hetermoe
