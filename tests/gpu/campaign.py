#!/usr/bin/env python3
"""Has Warpsmith judge candidates that were written beforehand, and keeps its ledger and transcripts.

    python3 tests/gpu/campaign.py docs/campaign-h200/sessions/llama-128.toml [MORE.toml ...] --seconds 100 --out FOLDER

A session file says what is worked on and what is tried, in this order:

    target  = "models/llama-7b"            # or a kernel file, with --shape among the options
    options = ["--only", "matmul,fused_mlp"]
    [[candidate]]
    op          = "matmul"
    file        = "kernels/cuda/nvidia-h200/matmul.cu"   # seen from the workspace; without it, the incumbent is edited
    set         = { RING = 4 }                           # tunables' values
    variant     = { NARROW = 64 }                        # the same wherever a variant gives one
    replace     = [["old text", "new text"]]             # each old text stands there exactly once
    technique   = "pipeline"
    description = "what changes, in a few words"
    hypothesis  = "what bounds it, and why this removes it"
    predicted   = 1.05

It is a client of `warpsmith mcp`, in a git repository that is a workspace (WARPSMITH_WORKSPACE, else the folder it is started in): every
candidate is an experiment, and what is kept is what the next is held against. When --seconds are over nothing more is handed in; a
session about a model then ends with the whole model, before and after. FOLDER gets results.tsv and one transcript a session, which
`warpsmith run TARGET --agent replay TRANSCRIPT` proposes again. WARPSMITH names the binary (warpsmith).
"""

import argparse
import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import time
import tomllib


class Server:
    """`warpsmith mcp` of one session; one question at a time."""

    def __init__(self, workspace, target, options, log):
        program = os.environ.get("WARPSMITH", "warpsmith")
        self.process = subprocess.Popen(
            [program, "mcp", target, *options], cwd=workspace, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self.asked = 0
        self.heard = b""
        self.ask("initialize", {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "campaign", "version": "1"}})
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def line(self, until):
        while b"\n" not in self.heard:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            if not more:
                raise TimeoutError("no answer" if not ready else "the server has ended")
            self.heard += more
        line, self.heard = self.heard.split(b"\n", 1)
        return json.loads(line)

    def ask(self, method, params, seconds=300.0):
        self.asked += 1
        self.send({"id": self.asked, "method": method, "params": params})
        until = time.monotonic() + seconds
        while True:
            answer = self.line(until)
            if answer.get("id") == self.asked:
                return answer

    def call(self, tool, arguments, seconds=300.0):
        """(texts, error): what the tool says, and what went wrong instead."""
        answer = self.ask("tools/call", {"name": tool, "arguments": arguments}, seconds)
        if "error" in answer:
            return [], answer["error"].get("message", "an error without words")
        texts = [block.get("text", "") for block in answer["result"].get("content", [])]
        return texts, " ".join(texts) if answer["result"].get("isError") else None

    def leave(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


def text_of(candidate, workspace, server):
    """The candidate's whole kernel file."""
    text = None
    if "file" not in candidate or candidate.get("on_incumbent"):
        texts, error = server.call("incumbent", {"op": candidate["op"]})
        if error:
            raise ValueError(error)
        text = texts[1]
        if any(not re.search(rf"^{name} *= {{ value", text, re.M) for name in candidate.get("set", {})):
            text = None  # the incumbent knows no such tunable
    if text is None:
        text = (workspace / candidate["file"]).read_text()
    for name, value in candidate.get("set", {}).items():
        text, found = re.subn(rf"^({name} *= {{ value = )\d+", rf"\g<1>{value}", text, flags=re.M)
        if found != 1:
            raise ValueError(f"{found} tunables {name}")
    for name, value in candidate.get("variant", {}).items():
        text, found = re.subn(rf"^(tune = {{.*\b{name} = )\d+", rf"\g<1>{value}", text, flags=re.M)
        if found == 0:
            raise ValueError(f"no variant with {name}")
    for old, new in candidate.get("replace", []):
        if text.count(old) != 1:
            raise ValueError(f"stands there {text.count(old)} times: {old!r}")
        text = text.replace(old, new)
    return text


def told(judged):
    """A line for one verdict."""
    shapes = "; ".join(
        f"{shape['shape']} {shape['us']:.1f} ({shape.get('incumbent_us') or 0:.1f})" for shape in judged.get("shapes") or [])
    speedup = judged.get("speedup")
    return (f"#{judged['experiment']:<3} {judged['status']:7} {'' if speedup is None else f'{speedup:.3f}x':8} "
            f"{judged['seconds']:5.1f} s  {shapes}  {(judged.get('why') or '')[:200]}")


def play(path, workspace, seconds, out):
    """One session; its lines on standard output."""
    session = tomllib.loads(path.read_text())
    began = time.monotonic()
    with open(out / f"{path.stem}.log", "w") as log:
        server = Server(workspace, session["target"], session.get("options", []), log)
        print(f"== {path.stem}: {session['target']} {' '.join(session.get('options', []))}", flush=True)
        try:
            for candidate in session["candidate"]:
                left = seconds - (time.monotonic() - began)
                if left <= 0:
                    print("no time for the others", flush=True)
                    break
                try:
                    text = text_of(candidate, workspace, server)
                except (ValueError, OSError) as error:
                    print(f"not a candidate: {candidate['description']}: {error}", flush=True)
                    continue
                asked = {key: candidate[key] for key in ("op", "technique", "description", "hypothesis", "predicted") if key in candidate}
                texts, error = server.call("evaluate", {**asked, "kernel": text}, max(60.0, left + 60.0))
                print(f"{candidate['description']} (predicted {candidate.get('predicted', '-')}): "
                      f"{error or told(json.loads(texts[0]))}", flush=True)
            texts, error = server.call("finish", {}, 120.0)
            print(error or texts[0], flush=True)
        except TimeoutError as error:
            print(f"session given up: {error}", flush=True)
        server.leave()
    runs = sorted((workspace / ".warpsmith").glob("*/transcript.jsonl"), key=lambda file: file.stat().st_mtime)
    if runs:
        shutil.copy(runs[-1], out / f"{path.stem}.jsonl")
    if (workspace / "results.tsv").exists():
        shutil.copy(workspace / "results.tsv", out / "results.tsv")
    print(f"== {path.stem}: {time.monotonic() - began:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sessions", nargs="+", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=600.0, help="for each session; then it is ended")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("campaign"))
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    workspace = pathlib.Path(os.environ.get("WARPSMITH_WORKSPACE", "."))
    for path in told.sessions:
        play(path, workspace, told.seconds, told.out)


if __name__ == "__main__":
    sys.exit(main())
