// The table of commands: names, usage and help in one place.
#include "client/commands/command.h"

namespace resident::cli {

std::span<const Command> Commands() {
  static const std::vector<Command>* const kCommands = new std::vector<Command>{
      {"status", "", "devices, queues and clients of the daemon", "", {}, RunStatus},
      {"health",
       "[SERVICE]",
       "whether the daemon takes work, as gRPC's health service says",
       "Prints SERVING, or NOT_SERVING while the daemon drains or has given up every device. Exit\n"
       "status 0 only if it is SERVING, so that a container's health check can be this command.\n"
       "SERVICE is a gRPC service's full name, or resident.device/N for device N; without it, all\n"
       "of them. Where the daemon has TLS the connection needs what others need; a token it does\n"
       "not need.\n"
       "  residentctl health --timeout=2s\n"
       "  residentctl health resident.v1.Executor\n"
       "  residentctl health resident.device/0\n",
       {},
       RunHealth},
      {"ops",
       "[list | show NAME | install NAME FILE... | activate NAME [VERSION] | rollback NAME |\n"
       "       remove NAME | promote NAME [VERSION] | watch [NAME] | audit [NAME]]",
       "operators: what there is, and changing it",
       "install compiles a version, proves it on examples and stages it, while everything else\n"
       "goes on; activate makes it serve, rollback the one before again. FILE is source in the\n"
       "operator SDK, with what it includes after it; its comments may say the signature:\n"
       "  // signature: x: in f32[*S], out: out f32[*S]\n"
       "  // split: out 4096\n"
       "  // summary: x squared\n"
       "Or --expr, --flux or --object in place of FILE. --example names a JSON file, one object\n"
       "or a list of them, with values by parameter name:\n"
       "  {\"inputs\": {\"x\": [1, 2]}, \"outputs\": {\"out\": [1, 4]}, \"relative_tolerance\": "
       "1e-5}\n"
       "A value is a number, nested lists, or {\"shape\": [2, 2], \"data\": [...], \"dtype\": "
       "\"f16\"};\n"
       "an output that is left out is compared with the active version's.\n"
       "promote tries the standby version on live traffic: --shadow=5% runs it beside the active\n"
       "one and compares, --traffic=10% lets it serve; 0% of both ends the trial.\n"
       "watch follows changes until interrupted; audit lists past ones, newest first.\n"
       "  residentctl ops install swish --expr 'x * sigmoid(x)' --wait=active\n"
       "  residentctl ops install swish swish.cc --example=swish.json\n"
       "  residentctl ops activate swish --bake=10m --on_regression=roll_back\n"
       "  residentctl ops rollback swish\n",
       {"expr",
        "flux",
        "object",
        "signature",
        "split",
        "summary",
        "example",
        "wait",
        "task_time",
        "scratch",
        "allow_spills",
        "revision",
        "force",
        "shadow",
        "traffic",
        "bake",
        "on_regression",
        "max_error_rate",
        "max_latency_ratio",
        "max_mismatch_rate",
        "min_tasks",
        "after",
        "before",
        "count"},
       RunOps},
      {"buffers",
       "[list | alloc SHAPE | upload ID FILE | download ID FILE | free ID... | persist ID]",
       "device memory",
       "list shows the durable buffers (a session's own end with it, so residentctl has none\n"
       "of its own afterwards). alloc makes a durable buffer and prints its id; SHAPE is as in\n"
       "2x3. upload and download copy raw elements; FILE may be - for stdin or (without --json)\n"
       "stdout.\n",
       {"dtype", "name", "device"},
       RunBuffers},
      {"run",
       "OPERATOR [NAME[:DTYPE][:SHAPE]=VALUE]...",
       "run one task and print what it returns",
       "VALUE is\n"
       "  1,2,3      elements; 0.5*1024 is 1,024 times 0.5\n"
       "  @FILE      raw little-endian elements (for an output: the file to write)\n"
       "  buffer:ID  a buffer on the device\n"
       "  nothing    for an output: print it\n"
       "Outputs that are not named are returned, in the shape of the first input (or its first\n"
       "dimensions, when the output has fewer); give another as in out:1024=. Scalars that\n"
       "have a default may be left out.\n"
       "  residentctl run add x=1,2,3 y=10,20,30 alpha=2\n"
       "  residentctl run sum_rows x:2x3=1,2,3,4,5,6\n"
       "  residentctl run fill out:4= value=7\n",
       {"device", "op_version", "all"},
       RunRun},
      {"flux",
       "asm FILE | disasm FILE | run FILE | run --operator NAME | check FILE",
       "assemble, disassemble, run and check FLUX programs",
       "FILE may be - for stdin. asm prints bytecode as hex, or writes it raw to --out. disasm\n"
       "takes hex or raw bytecode. run takes assembly or hex and prints registers, error and\n"
       "cycles; exit status 1 if the program ended with an error. check runs test vectors (one\n"
       "JSON object to a line: name, bytecode in hex, optional initial, max_cycles,\n"
       "unknown_opcode; expected registers, error, cycles) through the daemon, prints each\n"
       "difference and `N passed, N failed`; exit status 1 if any failed.\n",
       {"out", "initial", "registers", "max_cycles", "unknown_opcode", "device", "operator",
        "op_version"},
       RunFlux},
      {"bench",
       "",
       "latency and throughput through gRPC, against a bare gRPC echo",
       "Measures, in one run: a lone Run beside the same call to a bare gRPC echo server in a\n"
       "process of its own (alternating, so that both see the same machine); a stream of batches\n"
       "of small tasks; FLUX programs. Results are checked; exit status 1 if one is wrong.\n",
       {"quick", "seconds", "batch", "elements", "in_flight", "streams", "out", "device"},
       RunBench},
      {"demo",
       "",
       "stream checked work through the daemon and explain what happened",
       "",
       {"out", "device"},
       RunDemo},
      {"top",
       "",
       "live view of devices and clients",
       "Redraws on a terminal until interrupted; elsewhere, or with --json, prints one\n"
       "snapshot after the other. --once prints one, with rates over one interval.\n",
       {"once", "interval"},
       RunTop},
      {"admin",
       "park DEVICE | resume DEVICE | drain",
       "take the kernel off a device, put it back, stop taking work",
       "drain finishes what is queued and refuses new work for good; --drain_timeout is how long\n"
       "it may take (0: the daemon's own).\n",
       {"drain_timeout"},
       RunAdmin},
      {"token",
       "new NAME",
       "make a token for an identity",
       "Prints a new token, for the client, and the line that makes the daemon know it (the\n"
       "token's hash; the daemon stores no more). With --out the token goes to that file,\n"
       "readable by its owner alone, and is not printed.\n",
       {"out"},
       RunToken},
      {"state",
       "check DIR | repair DIR",
       "check or repair a daemon's state folder (--state_dir)",
       "Works on the folder itself, while no daemon uses it. check lists what is there and what\n"
       "is wrong with it; exit status 1 if anything is. repair writes the database anew with\n"
       "what can be read of it (and keeps a copy), drops files that are damaged, and says what "
       "was\n"
       "lost by that.\n",
       {},
       RunState},
      {"version", "", "versions of residentctl and of the daemon", "", {}, RunVersion},
      {"help", "[COMMAND]", "this, or more about one command", "", {}, RunHelp},
  };
  return *kCommands;
}

}  // namespace resident::cli
