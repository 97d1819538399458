"""Runs the modules of a ZONOS2 checkout on a CPU: the model code is the checkout's own, its CUDA
kernels (normalisation, rotation, embedding lookup, grouped experts, paged attention) are replaced by
plain PyTorch with the same contract."""
import contextlib
import importlib
import os
import sys
import types

import torch
import torch.nn.functional as F


# ---------------------------------------------------------------------------- replaced kernels
def rms(x, weight, eps):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.float()).to(x.dtype)


def rmsnorm(x, weight, eps, out=None):
    y = rms(x, weight, eps)
    return y if out is None else out.copy_(y)


def fused_add_rmsnorm(x, residual, weight, eps):
    """In place: residual += x, then x = norm(residual)."""
    residual.add_(x)
    x.copy_(rms(residual, weight, eps))


def rotate(positions, query, key, head_size, cos_sin_cache, is_neox):
    """In place on [rows, heads * head_size]; pairs are adjacent unless is_neox."""
    assert not is_neox
    half = head_size // 2
    table = cos_sin_cache[positions.long()].float()[:, None]
    cos, sin = table[..., :half], table[..., half:]
    for t in (query, key):
        x = t.view(len(t), -1, half, 2)
        a, b = x[..., 0].float(), x[..., 1].float()
        x.copy_(torch.stack((a * cos - b * sin, a * sin + b * cos), -1).to(t.dtype))


def fused_experts(hidden_states, w1, w2, topk_weights, topk_ids, inplace=False, **_):
    """Gate rows first, then up rows; the routing weight multiplies the expert's output."""
    out, inter = torch.zeros_like(hidden_states, dtype=torch.float32), w1.shape[1] // 2
    for expert in topk_ids.unique().tolist():
        rows, slots = (topk_ids == expert).nonzero(as_tuple=True)
        x = F.linear(hidden_states[rows], w1[expert])
        y = F.linear(F.silu(x[:, :inter]) * x[:, inter:], w2[expert])
        out.index_add_(0, rows, y.float() * topk_weights[rows, slots, None].float())
    out = out.to(hidden_states.dtype)
    return hidden_states.copy_(out) if inplace else out


class Rotary:
    """For head widths that the checkout's table class refuses (its kernel supports 64 and up)."""

    def __init__(self, head_dim, max_position, base):
        self.head_dim = head_dim
        with torch.device("cpu"):
            freq = 1.0 / (base ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim))
            angle = torch.outer(torch.arange(max_position, dtype=torch.float), freq)
        self.table = torch.cat((angle.cos(), angle.sin()), -1)

    def forward(self, positions, query, key, is_neox=True):
        rotate(positions, query, key, self.head_dim, self.table, is_neox)
        return query, key


class Attention:
    """Causal attention over packed sequences, with a growing cache per sequence."""

    def __init__(self, layers):
        self.caches = {}
        self.layers = layers

    def start(self, sequences):
        """`sequences`: [(id, rows)], packed in this order in the next forward pass."""
        self.sequences = sequences

    def past(self, sequence):
        kept = self.caches.get((sequence, 0))
        return 0 if kept is None else kept[0].shape[1]

    def forward(self, q, k, v, layer, batch):
        heads, width, out, at = q.shape[1], q.shape[2], torch.empty_like(q), 0
        for sequence, rows in self.sequences:
            span = slice(at, at + rows)
            new = [t.view(len(q), -1, width)[span].transpose(0, 1) for t in (k, v)]
            old = self.caches.get((sequence, layer))
            if old is not None:
                new = [torch.cat((o, n), 1) for o, n in zip(old, new)]
            self.caches[sequence, layer] = new
            total = new[0].shape[1]
            kk, vv = (t.repeat_interleave(heads // t.shape[0], 0).float() for t in new)
            score = q[span].transpose(0, 1).float() @ kk.transpose(1, 2) / width ** 0.5
            seen = torch.arange(total) <= torch.arange(total - rows, total)[:, None]
            share = torch.softmax(score.masked_fill(~seen, float("-inf")), -1)
            out[span] = (share @ vv).transpose(0, 1).to(q.dtype)
            at += rows
        return out


# ---------------------------------------------------------------------------- importing the checkout
def absent(name):
    if name in sys.modules:
        return False
    try:
        return importlib.util.find_spec(name) is None
    except (ImportError, ValueError):
        return True


def module(name, path=None, **attributes):
    m = types.ModuleType(name)
    m.__dict__.update(attributes)
    if path is not None:
        m.__path__ = path
    sys.modules[name] = m
    return m


def prepare(checkout):
    """Makes `import zonos2...` work without CUDA, flashinfer, sgl_kernel, tvm or message queues."""
    source = next((os.path.join(checkout, *p) for p in ((), ("python",)) if os.path.isdir(os.path.join(checkout, *p, "zonos2"))), None)
    if source is None:
        sys.exit(f"{checkout}: no python/zonos2 in it; give a checkout of the ZONOS2 repository")
    sys.path.insert(0, source)
    base = os.path.join(source, "zonos2")
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.nvtx.range = lambda *_: contextlib.nullcontext()
    module("flashinfer", rmsnorm=rmsnorm, fused_add_rmsnorm=fused_add_rmsnorm, apply_rope_with_cos_sin_cache_inplace=rotate)
    module("zonos2.kernel", [], indexing=lambda weights, indices, vocab_range=None, output=None: F.embedding(indices.long(), weights))
    module("zonos2.layers.moe.fused_moe.fused_moe_impl", fused_experts=fused_experts, fused_moe=None)
    # Packages whose __init__ pulls in the server, and message queues that only the server uses.
    for name in ("tts", "message"):
        module(f"zonos2.{name}", [os.path.join(base, name)])
    for name in ("msgpack", "zmq", "zmq.asyncio"):
        if absent(name):
            module(name, [], Context=object, Socket=object)
    if "zmq.asyncio" in sys.modules and "zmq" in sys.modules:
        sys.modules["zmq"].asyncio = sys.modules["zmq.asyncio"]


def checkpoint_file(folder):
    if os.path.isfile(folder):
        return folder
    for name in ("model.pth", "model.pt", os.path.join("consolidated", "consolidated.pth")):
        if os.path.isfile(os.path.join(folder, name)):
            return os.path.join(folder, name)
    sys.exit(f"{folder}: no model.pth, model.pt or consolidated/consolidated.pth in it")


class Original:
    """The checkout's model with its weights, and taps on what passes through it."""

    def __init__(self, checkout, folder, dtype, balancing=None, state=None):
        if "zonos2.kernel" not in sys.modules:
            prepare(checkout)
        from zonos2 import core
        from zonos2.distributed import info
        from zonos2.layers import attention, rotary
        from zonos2.models import weight
        from zonos2.models.config import ModelConfig
        from zonos2.models.zonos2 import Zonos2ForCausalLM
        from zonos2.utils import cached_load_checkpoint_config, torch_dtype
        self.core = core
        if info.try_get_tp_info() is None:
            info.set_tp_info(0, 1)
        settings = cached_load_checkpoint_config(folder if os.path.isdir(folder) else os.path.dirname(folder))
        if balancing is not None:
            settings.moe_balancing_strategy = balancing
        config = ModelConfig.from_checkpoint_config(settings)
        if config.head_dim not in (64, 128, 256, 512):
            attention.get_rope = lambda head_dim, rotary_dim, max_position, base, rope_scaling=None: Rotary(head_dim, max_position, base)
        rotary.set_rope_device(torch.device("cpu"))
        with torch.device("meta"), torch_dtype(dtype):
            self.model = Zonos2ForCausalLM(config)
        for layer in self.model.layers.op_list:
            # The class fixes this parameter to bfloat16, which would round the values of an f32 run.
            layer.attention.temp = layer.attention.temp.to(dtype)
        if state is None:
            state = torch.load(checkpoint_file(folder), map_location="cpu", weights_only=True, mmap=True)
            state = weight._normalize_zonos2_state_dict(dict(state.get("model", state)))
        self.state = dict(state)
        self.model.load_state_dict({k: v.to(dtype) for k, v in state.items()})
        self.config, self.dtype = config, dtype
        self.tap()
        self.reset()

    # ------------------------------------------------------------------ taps
    def tap(self):
        """Wraps `forward` of single objects; the classes stay as they are."""
        keep = lambda name, t: self.seen.__setitem__(name, t.detach().clone())
        m = self.model

        def wrap(owner, see, method="forward"):
            run = getattr(owner, method)

            def wrapped(*args, **kwargs):
                before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
                out = run(*args, **kwargs)
                see(before, out)
                return out
            setattr(owner, method, wrapped)
        wrap(m.emb_norm, lambda a, out: (keep("embedding", a[0]), keep("emb_norm", out[0])))
        if m.speaker_projection is not None:
            wrap(m.speaker_projection, lambda a, out: keep("projected", out[0]))
        for n, layer in enumerate(m.layers.op_list):
            at = f"layer.{n}."
            wrap(layer, lambda a, out, at=at: keep(at + "out", out[0] + out[1]))
            wrap(layer.attention, lambda a, out, at=at: keep(at + "attn", out))
            wrap(layer.feed_forward, lambda a, out, at=at: keep(at + "ffn", out[0] if isinstance(out, tuple) else out))
            if layer.is_moe:
                router = layer.feed_forward.router
                wrap(router, lambda a, out, at=at: (keep(at + "expert", out[1]), keep(at + "router_state", out[2])))
                wrap(router, lambda a, out, at=at: keep(at + "router_prob", a[0]), "_select_balanced_topk")
        wrap(m, lambda a, out: (keep("final_hidden", a[0]), keep("logits", out)), "compute_logits")

    # ------------------------------------------------------------------ running
    def reset(self):
        """Forgets all cached sequences."""
        self.attention = Attention(self.config.num_layers)
        self.core._GLOBAL_CTX = None
        self.context = self.core.Context(page_size=1, attn_backend=self.attention)
        self.core.set_global_ctx(self.context)

    @torch.no_grad()
    def forward(self, items):
        """items: [(sequence id, rows [n, width], voice or None)] -> logits [rows, codebooks, ids]; `seen` holds the taps."""
        self.seen = {}
        past = [self.attention.past(i) for i, _, _ in items]
        batch = self.core.TTSBatch(reqs=[None] * len(items), phase="prefill")
        batch.input_ids = torch.cat([rows for _, rows, _ in items])
        positions = torch.cat([torch.arange(p, p + len(rows)) for p, (_, rows, _) in zip(past, items)])
        batch.attn_metadata = types.SimpleNamespace(positions=positions)
        starts = torch.tensor([0] + [len(rows) for _, rows, _ in items[:-1]]).cumsum(0)
        spoken = [(s, voice) for s, (_, _, voice) in zip(starts, items) if voice is not None]
        if spoken:
            batch.speaker_token_positions = torch.stack([s for s, _ in spoken])
            batch.speaker_emb_values = torch.stack([v for _, v in spoken])
        self.attention.start([(i, len(rows)) for i, rows, _ in items])
        with self.context.forward_batch(batch):
            return self.model.forward()

    def whole(self, rows, voice=None):
        """Teacher-forced pass over one sequence from nothing."""
        self.reset()
        return self.forward([(0, rows, voice)])

    def generate(self, prompts, voices, frames, penalty, ignore_eos, window=50, books=8):
        """Greedy frames with the checkout's sampler and end-of-audio rule; all prompts advance together.
        -> [(frames [F, codebooks], end frame or -1, [logits of each step])]."""
        from zonos2.message.tts import TTSSamplingParams
        from zonos2.tts.sampler import sample_tts
        from zonos2.tts.sequence import TTSSequence
        self.reset()
        c = self.config
        params = TTSSamplingParams(temperature=0.0, max_tokens=frames, ignore_eos=ignore_eos)
        todo = [TTSSequence(p.tolist(), params, i, n_codebooks=c.n_codebooks, eoa_id=c.eoa_id) for i, p in enumerate(prompts)]
        feed, logits = list(prompts), [[] for _ in prompts]
        while any(not s.is_finished for s in todo):
            live = [i for i, s in enumerate(todo) if not s.is_finished]
            first = not todo[live[0]].num_completion_tokens
            got = self.forward([(i, feed[i], voices[i] if first else None) for i in live])
            last = torch.tensor([len(feed[i]) for i in live]).cumsum(0) - 1
            for i, row in zip(live, got[last].float()):
                history = torch.tensor([r[: c.n_codebooks] for r in todo[i].completion_token_ids[-window:]], dtype=torch.long)
                ids = torch.full((1, c.n_codebooks, max(1, len(history))), -1)
                if len(history):
                    ids[0] = history.T
                ids[:, books:] = -1
                ids[ids >= c.codebook_size] = -1
                one = torch.ones(1)
                token = sample_tts(row[None], 0 * one, 106 * one, 0 * one, 0 * one, repetition_token_ids=ids,
                                   repetition_penalties=penalty * one, text_vocab=c.text_vocab)[0]
                logits[i].append(row.clone())
                todo[i].append_token(token)
                feed[i] = torch.tensor([token])
        out = []
        for s, rows in zip(todo, logits):
            codes = torch.tensor(s.completion_token_ids)[:, : c.n_codebooks]
            out.append((codes, -1 if s.eos_frame is None or ignore_eos else s.eos_frame, torch.stack(rows)))
        return out
