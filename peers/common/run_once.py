"""Runs one measurement in a fresh process on a quiet machine and appends its line to a file.

    python run_once.py RESULTS FRAMEWORK[+OPTION] MODEL MODE BATCH PRECISION
                       --threads N --round NAME --limit SECONDS [--patience SECONDS] -- COMMAND...
    python run_once.py RESULTS FRAMEWORK[+OPTION] MODEL MODE BATCH PRECISION
                       --threads N --round NAME --left-out REASON

The command's last line on standard output is its `bench` event. Where there is none, a line without figures takes its
place that has the reason as option `error`; the exit status is 1 then. With `--left-out` nothing runs, and there is
that line at once. Fields that are added:

`round`             what has the same was measured in turn and is to be compared
`wall_s`            from the start of the process to its end
`others_busy`       share of the processors that other processes, or other guests of the host, used meanwhile
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import measuring

QUIET = 0.05
LOOK_S = 1.0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("framework")
    parser.add_argument("model")
    parser.add_argument("mode")
    parser.add_argument("batch_size", type=int)
    parser.add_argument("precision")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--round", required=True)
    parser.add_argument("--left-out", metavar="REASON")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which the process is ended")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:end])
    args.command = words[end + 1:]
    if bool(args.command) == bool(args.left_out):
        parser.error("either `-- COMMAND` or --left-out is needed")
    return args


def processor_seconds():
    """(busy, all) seconds of all processors since the machine started; time given to other guests is busy."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, steal = (ticks / os.sysconf("SC_CLK_TCK") for ticks in fields)
    busy = user + nice + system + irq + softirq + steal
    return busy, busy + idle + iowait


def share_busy(before, after, own=0.0):
    """Share of the processors in use between two readings, without `own` seconds."""
    return max(after[0] - before[0] - own, 0.0) / max(after[1] - before[1], 1e-9)


def wait_until_quiet(patience):
    """Waits until nothing else runs; warns when that does not happen in `patience` seconds.

    The load average is no help here: it still counts the measurement that ended a moment ago.
    """
    deadline = time.monotonic() + patience
    while True:
        before = processor_seconds()
        time.sleep(LOOK_S)
        busy = share_busy(before, processor_seconds())
        if busy <= QUIET:
            return
        if time.monotonic() >= deadline:
            print(f"warning: not a quiet machine: {busy:.0%} of the processors are in use", file=sys.stderr)
            return


def run(command, limit):
    """(standard output, reason of failure or None)"""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return "", f"not done after {limit:.0f} s"
    finally:
        end(process)
    if process.returncode == 0:
        return output, None
    said = [line for line in errors.splitlines() if line.strip()]
    return output, reason(said) or f"exit status {process.returncode}"


def end(process):
    """Ends what is left of a process and of those that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def reason(said):
    """The first line that tells of an error, else the last."""
    return next((line for line in said if line.startswith("error:")), said[-1] if said else None)


def processor_seconds_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def event(args, output, failure):
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else without_figures(args, failure or "no result on standard output")


def without_figures(args, reason):
    framework, *options = args.framework.split("+")
    options = {option: True for option in options} | {"error": reason}
    return measuring.event(args.model, framework, "", args.mode, args.precision, args.batch_size, args.threads, options)


def measured(args):
    """The line of a command that runs now."""
    wait_until_quiet(args.patience)
    before, started = processor_seconds(), time.monotonic()
    output, failure = run(args.command, args.limit)
    wall = time.monotonic() - started
    others = share_busy(before, processor_seconds(), processor_seconds_of_children())
    return event(args, output, failure) | {"wall_s": wall, "others_busy": others}


def main():
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    line = without_figures(args, args.left_out) if args.left_out else measured(args)
    line |= {"round": args.round}
    with args.results.open("a") as results:
        results.write(json.dumps(line) + "\n")
    error, others = line["options"].get("error"), line.get("others_busy", 0.0)
    speed = f"{line['throughput']:.2f} {line['unit']}" + (f" (others: {others:.0%})" if others > QUIET else "")
    print(error or speed)
    sys.exit(1 if error else 0)


if __name__ == "__main__":
    main()
