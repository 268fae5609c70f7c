"""llama-server's options that `serve` takes although they change nothing, or refuses, by reasons.
Other commands refuse those that they do not know with the same reasons.

With those that it obeys (serve.py) they are all that `llama-server --help` lists, so that a command
line of llama-server starts `serve`, or ends with the reason why it cannot. docs/options.md has them
in its order.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Each line is an option as --help shows it. What it asks for is always so, or its opposite is
# without meaning here; nothing is said of it.
_SO_ALREADY: Mapping[str, str] = {
    "chats use the model's own template": "--jinja",
    "attention never stores the full score matrix": "-fa, --flash-attn [on|off|auto]",
    "a text ends where the context is full": "--no-context-shift",
    "nothing is computed in advance": "--warmup, --no-warmup",
    "requests have their escapes from JSON": "-e, --escape, --no-escape",
    "/metrics and each answer have the times": "--perf, --no-perf",
    "messages have no colours, times or prefixes": """
        --log-colors [on|off|auto]
        --log-prefix, --no-log-prefix
        --log-timestamps, --no-log-timestamps
        --no-log-jsonl""",
    "the route is there": """
        --embedding, --embeddings
        --metrics
        --slots
        --props""",
    "the page is there": "--ui, --webui",
    "clients run tools": """
        --no-ui-mcp-proxy, --no-webui-mcp-proxy
        -no-ag, --no-agent""",
    "calls and thoughts are told apart from texts": "--no-skip-chat-parsing",
    "texts that are written at the same time share memory and passes": """
        -kvu, --kv-unified
        -cb, --cont-batching""",
    "known beginnings are used": "--cache-prompt",
    "the last message of the assistant's is continued": "--prefill-assistant",
    "all models are loaded": "--models-autoload",
    "weights are repacked where that needs no more memory": "--repack",
    "text only": "--no-mmproj, --no-mmproj-auto",
    "a draft's token is chosen on the CPU": "--no-spec-draft-backend-sampling",
    "keys are headers": "--no-cors-credentials",
}

# What it asks for is not done, and the answers are the same: `serve` says so as it starts.
_UNUSED: Mapping[str, str] = {
    "the system's priority and cores stay; nice and taskset change them": """
        -C, --cpu-mask M
        -Cr, --cpu-range lo-hi
        --cpu-strict N
        --prio N
        --poll N
        -Cb, --cpu-mask-batch M
        -Crb, --cpu-range-batch lo-hi
        --cpu-strict-batch N
        --prio-batch N
        --poll-batch N""",
    "numactl chooses the node": "--numa TYPE",
    "a text ends where the context is full": """
        --context-shift
        --keep N""",
    "the cache of a layer is where the layer is computed": """
        -kvo, --kv-offload, -nkvo, --no-kv-offload""",
    "weights are repacked where that needs no more memory": "-nr, --no-repack",
    "there are no such buffers": "--no-host",
    "llama.cpp does nothing with it either": "-dt, --defrag-thold N",
    "what does not fit into memory is read from the disk by itself": """
        -dio, --direct-io, -ndio, --no-direct-io
        -lzm, --lazy-mode MODE""",
    "-ngl, --vram-budget and a placement (powerinfer place) say what lives where": """
        --moe-cache-mib N
        -ncffn, --n-cpu-ffn N
        -fit, --fit [on|off]
        -fitt, --fit-target MiB
        -fitc, --fit-ctx N""",
    "there is at most one GPU, which --device names": """
        -sm, --split-mode MODE
        -ts, --tensor-split N0,N1
        -mg, --main-gpu N""",
    "the CPU chooses the token": "-bs, --backend-sampling",
    "the times of an answer are in it": "--verbose-prompt",
    "thoughts are closed without a word": "--reasoning-budget-message TEXT",
    "the template decides which thoughts stay": "--reasoning-preserve, --no-reasoning-preserve",
    "the log is text": "--log-jsonl",
    "models have names only": "--tags NAMES",
    "methods and headers of other pages are a fixed list": """
        --cors-methods METHODS
        --cors-headers HEADERS
        --cors-credentials""",
    "the page has its own settings": """
        --ui-config, --webui-config JSON
        --ui-config-file, --webui-config-file FILE""",
    "docs/serve.md lists the limits of time": """
        -to, --timeout N
        --sse-ping-interval N""",
    "one loop serves all clients": "--threads-http N",
    "known beginnings are used, and nothing else of a prompt": """
        --no-cache-prompt
        --cache-reuse N""",
    "all texts and known prompts share the memory of --kv-size": """
        --cache-idle-slots, --no-cache-idle-slots
        -cram, --cache-ram N
        -no-kvu, --no-kv-unified
        --kv-unified-per-slot N
        -nocb, --no-cont-batching
        -sps, --slot-prompt-similarity X""",
    "checkpoints are kept where prompts are likely to go on": "-cms, --checkpoint-min-step N",
    "/slots tells nothing of what texts say": "--no-slots",
    "text only: requests with images or sound are refused": """
        -mm, --mmproj FILE
        --mmproj-auto
        --mmproj-offload, --no-mmproj-offload
        -mmdev, --mmproj-device NAME
        --media-path FOLDER
        --image-min-tokens N
        --image-max-tokens N
        --mtmd-batch-max-tokens N
        --video-fps N
        --video-timestamp-interval N
        --video-ffmpeg-dir FOLDER""",
    "all models are loaded, and stay so": """
        --models-max N
        --no-models-autoload
        --sleep-idle-seconds N""",
    "the CPU computes the draft model, with the threads of -t and keys and values in F16": """
        --spec-draft-threads, -td, --threads-draft N
        --spec-draft-threads-batch, -tbd, --threads-batch-draft N
        --spec-draft-cpu-mask, -Cd, --cpu-mask-draft M
        --spec-draft-cpu-range, -Crd, --cpu-range-draft lo-hi
        --spec-draft-cpu-strict, --cpu-strict-draft N
        --spec-draft-prio, --prio-draft N
        --spec-draft-poll, --poll-draft N
        --spec-draft-cpu-mask-batch, -Cbd, --cpu-mask-batch-draft M
        --spec-draft-cpu-range-batch, -Crbd, --cpu-range-batch-draft lo-hi
        --spec-draft-cpu-strict-batch, --cpu-strict-batch-draft N
        --spec-draft-prio-batch, --prio-batch-draft N
        --spec-draft-poll-batch, --poll-batch-draft N
        --spec-draft-type-k, -ctkd, --cache-type-k-draft TYPE
        --spec-draft-type-v, -ctvd, --cache-type-v-draft TYPE
        --spec-draft-override-tensor, -otd, --override-tensor-draft PATTERN=TYPE
        --spec-draft-cpu-moe, -cmoed, --cpu-moe-draft
        --spec-draft-n-cpu-moe, --spec-draft-ncmoe, -ncmoed, --n-cpu-moe-draft N
        --spec-draft-device, -devd, --device-draft NAMES
        --spec-draft-ngl, -ngld, --gpu-layers-draft, --n-gpu-layers-draft N
        --spec-draft-backend-sampling
        -cd, --ctx-size-draft N""",
    "short guesses are checked, too, and a guess has no branches": """
        --spec-draft-n-min, --draft-min, --draft-n-min N
        --spec-draft-p-split, --draft-p-split P
        --spec-draft-sampling KIND
        --spec-ngram-mod-n-min N""",
    "--lookup takes the longest match of the last tokens, however often it occurred": """
        --spec-ngram-mod-n-match N
        --spec-ngram-simple-size-n N
        --spec-ngram-simple-min-hits N
        --spec-ngram-map-k-size-n N
        --spec-ngram-map-k-min-hits N
        --spec-ngram-map-k4v-size-n N
        --spec-ngram-map-k4v-min-hits N""",
    "--lookup keeps nothing between runs": """
        -lcs, --lookup-cache-static FILE
        -lcd, --lookup-cache-dynamic FILE""",
}

# Answers would differ, or a client would not find what it was promised.
_REFUSED: Mapping[str, str] = {
    "Hugging Face's own command lists its cache": "-cl, --cache-list",
    "powerinfer completion prints that script": "--completion-bash",
    "powerinfer --version prints it": "--version",
    "powerinfer doctor lists them": "--list-devices",
    "-h lists the options": "--usage",
    "one machine computes a model": "--rpc SERVERS",
    "./main --check-tensors does it": "--check-tensors",
    "the model is used as it is": """
        --control-vector FILE
        --control-vector-scaled FILE:SCALE
        --control-vector-layer-range START END
        -gan, --grp-attn-n N
        -gaw, --grp-attn-w N""",
    "download the file first, or use -hf": """
        -mu, --model-url URL
        -dr, --docker-repo NAME""",
    "there is no speech": """
        -hfv, -hfrv, --hf-repo-v REPO
        -hffv, --hf-file-v FILE""",
    "there is no adaptive-p": """
        --adaptive-target X
        --adaptive-decay X""",
    "each request says it": """
        --grammar GBNF
        --grammar-file FILE
        -j, --json-schema JSON
        -jf, --json-schema-file FILE
        -r, --reverse-prompt TEXT""",
    "control tokens are no part of an answer": "-sp, --special",
    "chats use the model's own template": "--no-jinja",
    "calls and thoughts are told apart from texts": "--skip-chat-parsing",
    "requests say it: continue_final_message": "--no-prefill-assistant",
    "prompts are not written to files but by --prompt-cache-dir": """
        --log-prompts-dir FOLDER
        --slot-save-path FOLDER""",
    "the draft model is a file (-md FILE)": """
        --spec-draft-hf, -hfd, -hfrd, --hf-repo-draft REPO""",
    "it measures llama.cpp": """
        --spec-synth-len L
        --spec-synth-rates P0,P1""",
    "llama.cpp has removed it": """
        --spec-ngram-size-n N
        --spec-ngram-size-m N
        --spec-ngram-min-hits N""",
    "one process listens": "--reuse-port",
    "a proxy can do that": """
        --api-prefix PREFIX
        --ssl-key-file FILE
        --ssl-cert-file FILE""",
    "the page is built in": "--path FOLDER",
    "clients run tools": """
        --ui-mcp-proxy, --webui-mcp-proxy
        --tools NAMES
        --tools-runtime NAME
        --mcp-servers-config FILE
        --mcp-servers-json JSON
        -ag, --agent""",
    "text only: download no such file": "-mmu, --mmproj-url URL",
    "give each model with -m NAME=FILE": """
        --models-dir FOLDER
        --models-preset FILE""",
    "all requests share the adapters of --lora": "--lora-init-without-apply",
    "name the repository with -hf": """
        --embd-gemma-default
        --fim-qwen-1.5b-default
        --fim-qwen-3b-default
        --fim-qwen-7b-default
        --fim-qwen-7b-spec
        --fim-qwen-14b-spec
        --fim-qwen-30b-default
        --gpt-oss-20b-default
        --gpt-oss-120b-default
        --vision-gemma-4b-default
        --vision-gemma-12b-default""",
}
TAKEN = "without_effect"
_OPTION = re.compile(r"\s*((?:-[\w.-]+(?:, )?)+)(.*)")


def _rows(table: Mapping[str, str]) -> Iterator[tuple[str, list[str], str]]:
    """Reasons, names and values of the options in a table."""
    for reason, lines in table.items():
        for line in lines.strip().splitlines():
            names, value = _OPTION.fullmatch(line).groups()  # type: ignore[union-attr]
            yield reason, names.strip().rstrip(",").split(", "), value.strip()


class Refused(argparse.Action):
    """Ends the command with the reason why an option is not taken. is_flag: it has no value."""

    def __init__(self, *, reason: str, is_flag: bool, **rest: Any):
        super().__init__(**rest, help=argparse.SUPPRESS, nargs="*")
        self.reason, self.is_flag = reason, is_flag

    def __call__(self, parser: Any, _args: Any, _value: Any, option: Any = None) -> None:
        parser.error(f"option {option} is not taken: {self.reason}")


class _Taken(argparse.Action):
    """Keeps the name of an option, and why nothing comes of it; "": it is so already."""

    def __init__(self, *, reason: str, value: str, **rest: Any):
        nargs = 0 if not value else "?" if value.startswith("[") else None
        super().__init__(**rest, help=argparse.SUPPRESS, nargs=nargs)
        self.reason = reason

    def __call__(self, _parser: Any, args: Any, _value: Any, option: Any = None) -> None:
        args.without_effect = {**(args.without_effect or {}), option: self.reason}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options. Those that were given without effect are in args.without_effect."""
    for _, names, value in _rows(_SO_ALREADY):
        parser.add_argument(*names, action=_Taken, dest=TAKEN, reason="", value=value)
    for reason, names, value in _rows(_UNUSED):
        parser.add_argument(*names, action=_Taken, dest=TAKEN, reason=reason, value=value)
    for reason, names, value in _rows(_REFUSED):
        refused = {"reason": reason, "is_flag": not value}
        parser.add_argument(*names, action=Refused, dest=argparse.SUPPRESS, **refused)


def notes(args: argparse.Namespace) -> Sequence[str]:
    """A sentence for each option and variable that was given and changes nothing, but is not so
    already."""
    given = dict(args.without_effect or {})
    given |= dict.fromkeys(getattr(args, "unknown_variables", ()), "it stands for no option")
    return [f"{name} changes nothing: {reason}" for name, reason in given.items() if reason]


REASONS: Mapping[str, str] = {
    name: reason for reason, names, _ in (*_rows(_UNUSED), *_rows(_REFUSED)) for name in names
}
