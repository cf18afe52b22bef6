"""Runs the commands of the documents below, in order, as a reader would, and
holds what the documents show to what comes out.

A block ```sh is run by bash, all blocks of a document by the same one; each
command in it must succeed. ```sh run is a command that stays: it takes the place
of those that run, and ```sh run-beside joins them; the next block waits for it.
A block ```text after one of these shows all of its output, line by line: other
numbers, durations, times and request ids will do, `...` in a line stands for
anything, and a line of `...` for any lines. Lines may come in another order.
A block ```go FILE or ```python FILE shows a part of that file."""
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from process import ROOT, fetch, wait

DOCUMENTS = ["README.md"] + [f"docs/{name}.md" for name in ("quickstart", "gateway", "tuning", "sizing", "troubleshooting")]
LIMIT = 300  # seconds for one block

FENCE = re.compile(r"^```(.*)$")
TOLERATED = re.compile(r"""
    (?P<any>\.\.\.)
  | (?P<address>\d+\.\d+\.\d+\.\d+(:\d+)?)
  | (?P<when>\d{4}-\d\d-\d\dT[\d:.]+Z)
  | (?P<id>(?<![\w-])(?=[0-9a-z]*\d)(?=[0-9a-z]*[a-z])[0-9a-z]{12,}\b)
  | (?P<span>(?<![\w.-])(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+\b)
  | (?P<number>(?<![\w-])-?\d+(\.\d+)?)""", re.VERBOSE)
SOME = {"any": ".*", "when": r"\d{4}-\d\d-\d\dT[\d:.]+Z", "id": "[0-9a-z]+", "span": r"(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+", "number": r"-?\d+(\.\d+)?"}


def blocks(text):
    """Yields (line, what, body) for each fenced block of a document."""
    lines, what = text.split("\n"), None
    for number, line in enumerate(lines, 1):
        fence = FENCE.match(line)
        if what is not None and fence and not fence.group(1):
            yield start, what, "\n".join(body)
            what = None
        elif what is not None:
            body.append(line)
        elif fence:
            what, start, body = fence.group(1), number, []
        elif line.startswith("    "):
            raise SystemExit(f"FAIL: line {number} is an indented block, which nothing runs: fence it")
    assert what is None, "a block without an end"


def pattern(line):
    """The expression for a shown line of output."""
    parts, at = [], 0
    for match in TOLERATED.finditer(line):
        parts.append(re.escape(line[at:match.start()]))
        parts.append(SOME.get(match.lastgroup) or re.escape(match.group()))
        at = match.end()
    return "".join(parts) + re.escape(line[at:])


def tidy(text):
    """Lines without blank ones, their spaces as one each; in JSON, where protobuf
    puts some or none from build to build, none after commas and colons."""
    lines = [" ".join(line.split()) for line in text.split("\n") if line.strip()]
    return [re.sub("([,:]) ", r"\1", line) if line.startswith("{") else line for line in lines]


def differences(shown, output):
    """What of a block is not in the output and, unless it has a line of `...`,
    what of the output is not in the block."""
    left, missing, open_ended = tidy(output), [], False
    for line in tidy(shown):
        if line == "...":
            open_ended = True
            continue
        found = next((other for other in left if re.fullmatch(pattern(line), other)), None)
        if found is None:
            missing.append("- " + line)
        else:
            left.remove(found)
    return missing + ([] if open_ended else ["+ " + line for line in left])


class Reader:
    """A person at a shell, with one program or more in other terminals."""

    def __init__(self):
        paths = "/usr/bin" + os.pathsep + os.environ["PATH"]  # python3 with Debian's modules
        flags = subprocess.run(["go", "env", "GOFLAGS"], capture_output=True, text=True, check=True).stdout.strip()
        self.env = dict(os.environ, PATH=paths, CGO_ENABLED="0", GOFLAGS=flags if "-trimpath" in flags else flags + " -trimpath", LC_ALL="C.UTF-8")
        self.running = []
        self.shell = subprocess.Popen(["bash"], cwd=ROOT, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.say("set -o pipefail; trap 'failed=$BASH_COMMAND' ERR")

    def say(self, script):
        self.shell.stdin.write(script + "\n")
        self.shell.stdin.flush()

    def run(self, script):
        """Returns the output and the command that failed, if one did."""
        end = "end-of-block"
        self.say(f"failed=\n{{\n{script}\n}} </dev/null 2>&1\nprintf '\\n{end} %s\\n' \"$failed\"")
        output, deadline = [], time.monotonic() + LIMIT
        for line in self.shell.stdout:
            if line.startswith(end):
                return "".join(output), line.removeprefix(end).strip()
            output.append(line)
            if time.monotonic() > deadline:
                break
        return "".join(output), "the shell ended, or took too long"

    def start(self, command, beside):
        if not beside:
            self.stop()
        output = tempfile.TemporaryFile("w+")
        process = subprocess.Popen(["bash", "-c", command], cwd=ROOT, env=self.env, stdout=output, stderr=output, start_new_session=True)
        self.running.append((command, process, output))
        listen = re.search(r"--listen[= ](\S+)", command)
        url = f"http://{listen.group(1) if listen else '127.0.0.1:9090'}/readyz"

        def ready():
            if process.poll() is not None:
                output.seek(0)
                raise SystemExit(f"FAIL: {command!r} ended: {output.read()}")
            with contextlib.suppress(OSError):
                return fetch(url) == "ok"

        def followed():
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                streams = [s for f in fetch(url.replace("/readyz", "/debug/state")) for s in f["sources"]]
                return all(s["state"] not in ("connecting", "bootstrapping") for s in streams)
            return True  # it follows no engine

        wait(f"{command!r} to be ready", ready, LIMIT)
        # A person types for seconds. Some commands show engines that never come.
        deadline = time.monotonic() + 5
        while not followed() and time.monotonic() < deadline:
            time.sleep(0.1)
        output.seek(0)
        return output.read()

    def stop(self):
        for command, process, output in reversed(self.running):
            assert process.poll() is None, f"{command!r} ended by itself"
            os.killpg(process.pid, signal.SIGINT)
            process.wait(10)
            output.close()
        self.running = []

    def close(self):
        self.stop()
        self.shell.stdin.close()
        self.shell.wait(10)


def same(file, body):
    """Whether body is a part of the file, but for its indentation."""
    with open(os.path.join(ROOT, file)) as f:
        whole = [line.strip() for line in f]
    part = [line.strip() for line in body.split("\n")]
    return any(whole[i:i + len(part)] == part for i in range(len(whole)))


def follow(document, log):
    """Runs one document; returns how many commands it has and what is wrong."""
    with open(os.path.join(ROOT, document)) as f:
        text = f.read()
    wrong, commands, output = [], 0, None
    reader = Reader()
    with contextlib.closing(reader):
        for line, what, body in blocks(text):
            where = f"{document}:{line}"
            print(f"   {where} {what}", file=log, flush=True)
            kind, _, more = what.partition(" ")
            if kind == "sh":
                commands += 1
                if more in ("run", "run-beside"):
                    output = reader.start(body, more == "run-beside")
                else:
                    assert more == "", f"{where}: {what!r}"
                    output, failed = reader.run(body)
                    if failed:
                        wrong.append(f"{where}: failed: {failed}\n{output}")
            elif kind == "text":
                assert output is not None, f"{where}: shows the output of no command"
                if different := differences(body, output):
                    wrong.append("\n".join([f"{where}: shows (-) what does not come, or leaves out (+) what does:"] + different + ["what came:", output]))
                output = None
            elif kind in ("go", "python"):
                if not same(more, body):
                    wrong.append(f"{where}: is not a part of {more}")
            else:
                assert kind == "yaml", f"{where}: nothing checks a block {what!r}"
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        if not os.path.exists(os.path.join(ROOT, os.path.dirname(document), target)):
            wrong.append(f"{document}: a link to {target}, which is not there")
    return commands, wrong


def main():
    all_wrong = []
    for document in sys.argv[1:] or DOCUMENTS:
        started = time.monotonic()
        commands, wrong = follow(document, sys.stderr)
        all_wrong += wrong
        print(f"{document}: {commands} blocks of commands in {time.monotonic() - started:.0f} s, {len(wrong)} wrong")
        assert commands > 0, f"{document}: no commands"
    for text in all_wrong:
        print(text)
    return bool(all_wrong)


if __name__ == "__main__":
    # What must be noticed, is.
    assert differences("a 1 b\nsim-2 7ms\n", "sim-2  1m30s\n\na 2.5 b\n") == []
    assert differences("a 1 b", "a x b") == ["- a 1 b", "+ a x b"]
    assert differences("sim-2 x", "sim-1 x\n") == ["- sim-2 x", "+ sim-1 x"]
    assert differences("a\n...", "b\na\nc") == []
    assert differences('{"a":...,"b":1}', '{"a": {"c":2}, "b":3}') == []
    sys.exit(main())
