"""A client's round and the server's mean of every protocol, against formulas written out here.

One round is run by the loop; then each client trains a second one, once by the protocol and once
by a plain loop on copies, with losses as sums over samples.
"""

import copy

import pytest
import torch

from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.types import Upload
from fedre_privacy.federation.steps import client_step, first_uploads, server_step
from fedre_privacy.protocols.blocks.state import Task

CLOSE = {"rtol": 1e-3, "atol": 2e-5}
OPTIONS = {"fedavgdbe": {"momentum": 0.3, "kappa": 5.0}, "fedral": {"blocks": (2, 4)}}
CLIPPED = {"fml", "fedkd"}
NAMES = (
    "fedavg lg-fedavg fedproto fedtgp fpl fedgen fedkd fedmrl fml fd fedapen fedala fedavgdbe "
    "fedral"
).split()


def ce(logits, targets):
    """Mean over rows of -sum_c t_c log softmax_c; hard targets may be class numbers."""
    if targets.dim() == 1:
        targets = torch.eye(logits.shape[1])[targets]
    log_sum = (logits - logits.max()).exp().sum(1).log() + logits.max()
    return sum(((log_sum[:, None] - logits) * targets).sum(1)) / len(logits)


def divergence(teacher, student):
    """KL(softmax(teacher) || softmax(student)), the teacher a constant, over the batch."""
    p = teacher.detach().exp() / teacher.detach().exp().sum(1, keepdim=True)
    q = student.exp() / student.exp().sum(1, keepdim=True)
    return (p * (p / q).log()).sum() / len(p)


class Hand:
    """A client's copy with its losses by hand; `sent` is what opened the round."""

    def __init__(self, name, fed, client, sent):
        self.name, self.fed, self.sent = name, fed, sent
        self.client = copy.deepcopy(client)
        self.model = self.client.model
        self.small = self.client.memory.get("small")
        self.extra = [m for key, m in self.client.memory.items() if key in self.EXTRA]
        self.mean = torch.zeros(16)

    EXTRA = ("bridge", "projector", "shift", "matrix")

    def modules(self):
        return [m for m in (self.model, self.small, *self.extra) if m is not None]

    def rate(self, module):
        return 0.01 if self.name == "fedkd" and module is self.small else 0.1

    def loss(self, x, y):
        r = self.model.extractor(x)
        out = self.model.head(r)
        own = getattr(self, "_" + self.name.replace("-", "_"), None)
        return ce(out, y) if own is None else own(x, y, r, out)

    def _pull(self, y, r, out, weight):
        table = dict(zip(self.sent[0].labels.tolist(), self.sent[0].means, strict=True))
        gaps = [(r[i] - table[c]).square().sum() for i, c in enumerate(y.tolist()) if c in table]
        return ce(out, y) + weight * sum(gaps) / r.numel()

    def _fedproto(self, x, y, r, out):
        return self._pull(y, r, out, 1.0)

    def _fedtgp(self, x, y, r, out):
        return self._pull(y, r, out, 10.0)

    def _fpl(self, x, y, r, out):
        means, labels = self.sent[0].means, self.sent[0].labels
        total = ce(out, y)
        for rep, c in zip(r, y.tolist(), strict=True):
            if not (labels == c).any():
                continue
            cos = torch.stack([(rep @ g) / (rep.norm() * g.norm()) for g in means]).double() / 0.02
            power = (cos - cos.max()).exp()
            total = total - (power[labels == c].sum() / power.sum()).log().float() / len(y)
            unbiased = means[labels == c].mean(0)
            total = total + (rep - unbiased).square().sum() / r.shape[1] / len(y)
        return total

    def _fd(self, x, y, r, out):
        (table, counts) = self.sent
        mine = self.uploaded[0]
        total = ce(out, y)
        for row, c in zip(out, y.tolist(), strict=True):
            at = (table.labels == c).nonzero().flatten().tolist()
            if not at:
                continue
            number, target = int(counts.values[0, at[0]]), table.outputs[at[0]]
            own = (mine.labels == c).nonzero().flatten().tolist()
            if own:
                if number == 1:
                    continue
                target = (number * target - mine.outputs[own[0]]) / (number - 1)
            total = total + ce(row[None], target[None]) / len(y)
        return total

    def _fedgen(self, x, y, r, out):
        q = sum(torch.bincount(c.train.labels, minlength=10) for c in self.fed.clients)
        made = torch.multinomial(q.double(), len(y), replacement=True)
        noise = torch.randn(len(y), 12)
        g = self.sent[1].params
        hidden = torch.cat([noise, torch.eye(10)[made]], 1) @ g["net.0.weight"].T + g["net.0.bias"]
        spread = (hidden.var(0, unbiased=False) + 1e-5).sqrt()
        hidden = (hidden - hidden.mean(0)) / spread * g["net.1.weight"] + g["net.1.bias"]
        fake = hidden.clamp(min=0) @ g["net.3.weight"].T + g["net.3.bias"]
        return ce(out, y) + ce(self.model.head(fake), made)

    def _fedkd(self, x, y, r, out):
        theirs = self.small.extractor(x)
        mentee = self.small.head(theirs)
        scale = (ce(out, y) + ce(mentee, y)).item()
        mapped = theirs @ self.client.memory["bridge"].weight.T
        hidden = (r - mapped).square().mean() / scale
        mentor_loss = ce(out, y) + divergence(mentee, out) / scale + hidden
        return mentor_loss + ce(mentee, y) + divergence(out, mentee) / scale

    def _fedmrl(self, x, y, r, out):
        p = self.client.memory["projector"]
        z = torch.cat([self.small.extractor(x), r], 1) @ p.weight.T + p.bias
        return ce(self.small.head(z[:, :8]), y) + ce(self.model.head(z), y)

    def _fml(self, x, y, r, out):
        meme = self.small(x)
        private = 0.5 * ce(out, y) + 0.5 * divergence(meme, out)
        return private + 0.5 * ce(meme, y) + 0.5 * divergence(out, meme)

    def _fedapen(self, x, y, r, out):
        shared, share = self.small(x), float(self.client.tensors["lambda"])
        private = ce(share * out + (1 - share) * shared.detach(), y)
        common = ce(share * out.detach() + (1 - share) * shared, y)
        taught = divergence(shared, out) + divergence(out, shared)
        return ce(out, y) + ce(shared, y) + private + common + taught

    def _fedavgdbe(self, x, y, r, out):
        self.mean = 0.7 * self.mean.detach() + 0.3 * r.sum(0) / len(r)
        gap = self.mean - self.fed.server.tensors["consensus"]
        shifted = self.model.head(r + self.client.memory["shift"].bias)
        return ce(shifted, y) + 5.0 * (0.5 * gap.square()).sum() / 16

    def _fedral(self, x, y, r, out):
        a = self.client.memory["matrix"].weight.T  # a row vector times A
        return ce(self.model.head(r + r @ a), y)

    def train(self):
        """One epoch of SGD; returns the mean loss."""
        samples, losses = self.client.fitted, []
        order = torch.randperm(
            len(samples), generator=stream(0, "batches", client=self.client.id, round=2)
        )
        for module in self.modules():
            module.train()
        with seeded_generators(0, "client", client=self.client.id, round=2):
            for first in range(0, len(samples) - 15, 16):
                pick = order[first : first + 16]
                loss = self.loss(samples.images[pick].float() / 255, samples.labels[pick])
                params = [list(m.parameters()) for m in self.modules()]
                flat = torch.autograd.grad(loss, sum(params, []), allow_unused=True)
                gradients = iter(flat)
                for module, own in zip(self.modules(), params, strict=True):
                    pairs = [(p, next(gradients)) for p in own]
                    pairs = [(p, g) for p, g in pairs if g is not None]
                    norm = sum(float(g.square().sum()) for _, g in pairs) ** 0.5
                    clip = min(1.0, 10 / norm) if self.name in CLIPPED and norm else 1.0
                    for p, g in pairs:
                        p.data -= self.rate(module) * clip * g
                losses.append(float(loss.detach()))
        for module in self.modules():
            module.eval()
        return sum(losses) / len(losses)

    def upload(self):
        """Named tensors that the client should send now."""
        samples = self.client.train
        with torch.no_grad():
            reps = self.model.extractor(samples.images.float() / 255)
            if self.name == "fd":
                out = self.model.head(reps).exp()
                reps = out / out.sum(1, keepdim=True)
        classes = sorted(set(samples.labels.tolist()))
        table = torch.stack([reps[samples.labels == c].mean(0) for c in classes])
        if self.name in ("fedproto", "fedtgp", "fpl"):
            return {"means": table, "labels": torch.tensor(classes)}
        if self.name == "fd":
            return {"outputs": table, "labels": torch.tensor(classes)}
        if self.name in ("lg-fedavg", "fedgen"):
            return _params(self.model.head)
        if self.name == "fedral":
            a, m = self.client.memory["matrix"].weight.detach().T, (2, 4)[self.client.id % 2]
            s = 16 // m
            cut = [a[i * s : (i + 1) * s, i * s : (i + 1) * s] for i in range(m)]
            return {"blocks": torch.stack(cut)}
        return _params(self.small if self.small is not None else self.model)


def _params(module):
    return {f"params/{name}": value.detach() for name, value in module.named_parameters()}


def rebuilt(tensors):
    """A FedKD message as plain matrices, flattened from the second dimension."""
    out = {}
    for name, tensor in tensors.items():
        base, part = name.rsplit(".", 1)
        if part == "dense":
            out[base] = tensor.flatten(1) if tensor.dim() > 1 else tensor
        elif part == "U":
            out[base] = tensor @ torch.diag(tensors[f"{base}.s"]) @ tensors[f"{base}.V"]
    return out


@pytest.mark.parametrize("name", NAMES)
def test_a_clients_round_equals_the_plain_loop(world, name):
    fed = world(name, train={"rounds": 1}, **OPTIONS.get(name, {}))
    fed.run()
    for client in fed.clients[:2]:
        sent, task = fed.sent(2, client.id), Task(fed.setting, 2, client.id)
        hand = Hand(name, fed, client, sent)
        hand.uploaded = fed.uploads(1)[client.id].artifacts
        before = copy.deepcopy(hand.small)

        images, labels = client.fitted.batch(torch.arange(12))
        params = [p for m in fed.protocol.modules(client) for p in m.parameters()]
        copied = [p for m in hand.modules() for p in m.parameters()]
        tensors = dict(client.tensors)
        with seeded_generators(0, "one batch"):
            value = fed.protocol.loss(client, images, labels, sent)
        client.tensors = tensors
        with seeded_generators(0, "one batch"):
            expected = hand.loss(images, labels)
        hand.mean = torch.zeros(16)
        torch.testing.assert_close(value, expected, **CLOSE)
        one = torch.autograd.grad(value, params, materialize_grads=True, allow_unused=True)
        two = torch.autograd.grad(expected, copied, materialize_grads=True, allow_unused=True)
        torch.testing.assert_close(one, two, **CLOSE)
        assert sum(float(g.abs().sum()) for g in one) > 0

        (emission, *more), loss = client_step(fed.protocol, client, sent, task)
        assert not more
        assert loss == pytest.approx(hand.train(), rel=1e-4)
        for own, mine in zip(fed.protocol.modules(client), hand.modules(), strict=True):
            torch.testing.assert_close(_params(own), _params(mine), **CLOSE)
        uploaded = emission.artifact.tensors()
        if name == "fedkd":
            update = {
                key: (value - dict(before.named_parameters())[key]).detach()
                for key, value in hand.small.named_parameters()
            }
            got = rebuilt({k.removeprefix("params/"): v for k, v in uploaded.items()})
            assert got.keys() == update.keys()
            for key, value in update.items():
                flat = value.flatten(1) if value.dim() > 1 else value
                energy = (flat - got[key]).square().sum() / flat.square().sum()
                assert energy <= 1 - 0.95 + 1e-3, key
        else:
            torch.testing.assert_close(uploaded, hand.upload(), **CLOSE)


def _library_fedkd(self, x, y, r, out):
    """What public libraries descend: the sum of both models' losses, nothing detached."""
    theirs = self.small.extractor(x)
    mentee = self.small.head(theirs)
    scale = ce(out, y) + ce(mentee, y)
    hidden = (r - theirs @ self.client.memory["bridge"].weight.T).square().mean()
    p, q = out.softmax(1), mentee.softmax(1)
    mentor_loss = ce(out, y) + (q * (q / p).log()).sum() / len(y) / scale + hidden / scale
    mentee_loss = ce(mentee, y) + (p * (p / q).log()).sum() / len(y) / scale + hidden / scale
    return mentor_loss + mentee_loss


LIBRARY = {"joint_grad": True, "hidden": 2.0}
PLAIN = ("fedre", "fedgh", "fedallrep", "local", "fedsgd")
LOSSES = [(name, OPTIONS.get(name, {})) for name in (*NAMES, *PLAIN)] + [("fedkd", LIBRARY)]


@pytest.mark.parametrize(("name", "options"), LOSSES, ids=lambda one: str(one))
def test_loss_and_gradient_of_random_batches_are_those_of_the_published_formula(
    world, monkeypatch, name, options
):
    """Images of noise, random labels: value and whole gradient within 1e-5 of their size."""
    if options is LIBRARY:
        monkeypatch.setattr(Hand, "_fedkd", _library_fedkd)
    fed = world(name, train={"rounds": 1}, **options)
    fed.run()
    rng = torch.Generator().manual_seed(7)
    for client in fed.clients[:2]:
        sent = fed.sent(2, client.id)
        hand = Hand(name, fed, client, sent)
        hand.uploaded = fed.uploads(1)[client.id].artifacts if fed.uploads(1) else ()
        labels = torch.randint(10, (16,), generator=rng)
        images = torch.rand(16, *client.train.images.shape[1:], generator=rng)
        params = [p for m in fed.protocol.modules(client) for p in m.parameters()]
        copied = [p for m in hand.modules() for p in m.parameters()]
        tensors = dict(client.tensors)
        with seeded_generators(0, "one batch"):
            value = fed.protocol.loss(client, images, labels, sent)
        client.tensors = tensors
        with seeded_generators(0, "one batch"):
            expected = hand.loss(images, labels)
        assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
        one, two = (
            torch.cat([g.flatten() for g in torch.autograd.grad(
                loss, over, materialize_grads=True, allow_unused=True
            )])
            for loss, over in ((value, params), (expected, copied))
        )  # fmt: skip
        assert float(two.norm()) > 0
        assert float((one - two).norm()) <= 1e-5 * float(two.norm())


def _uploaded(fed):
    return {u.client: u.artifacts[0].tensors() for u in fed.uploads(1)}


def _mean(states, weights):
    total = sum(weights.values())
    return {n: sum(w / total * states[k][n] for k, w in weights.items()) for n in states[0]}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("fpl", "fedtgp")])
def test_the_server_aggregates_by_the_formula(world, name):
    # 100 samples over three clients: the numbers of samples differ
    fed = world(name, train={"rounds": 1}, per_class=7, **OPTIONS.get(name, {}))
    sizes = {c.id: len(c.train) for c in fed.clients}
    for client in fed.clients:  # make them differ clearly
        keep = torch.arange(sizes[client.id] - 3 * client.id)
        client.train = client.train.take(keep)
        client.held = None if client.held is None else client.held % len(keep)
    sizes = {c.id: len(c.train) for c in fed.clients}
    assert len(set(sizes.values())) == 3
    fed.run()
    states, got = _uploaded(fed), fed.sent(2, 0)
    answer = got[0].tensors()
    if name in ("fml", "fedapen"):
        expected = _mean(states, dict.fromkeys(states, 1))
    elif name == "fedkd":
        matrices = {
            k: rebuilt({n.removeprefix("params/"): v for n, v in s.items()})
            for k, s in states.items()
        }
        expected = _mean(matrices, dict.fromkeys(states, 1))
        answer = rebuilt({n.removeprefix("params/"): v for n, v in answer.items()})
        start = dict(fed.sent(1, 0)[0].params)
        for key, value in expected.items():
            lost = (value - answer[key]).square().sum() / value.square().sum()
            assert lost <= 1 - 0.95 + 1e-3, key
            now = dict(fed.server.modules["small"].named_parameters())[key].detach()
            moved = start[key] + answer[key].reshape(now.shape)
            torch.testing.assert_close(now, moved, **CLOSE)
        return
    elif name in ("fedproto", "fd"):
        rows = "means" if name == "fedproto" else "outputs"
        found = {}
        for state in states.values():
            for c, row in zip(state["labels"].tolist(), state[rows], strict=True):
                found.setdefault(c, []).append(row)
        expected = {
            rows: torch.stack([sum(found[c]) / len(found[c]) for c in sorted(found)]),
            "labels": torch.tensor(sorted(found)),
        }
        if name == "fd":
            contributors = got[1].values[0].tolist()
            assert contributors == [len(found[c]) for c in sorted(found)]
    elif name == "fedral":
        total = torch.zeros(16, 16)
        for k, state in states.items():
            m, size, _ = state["blocks"].shape
            for i in range(m):
                where = slice(i * size, (i + 1) * size)
                total[where, where] += sizes[k] / sum(sizes.values()) * state["blocks"][i]
        torch.testing.assert_close(torch.block_diag(*answer["blocks"]), total, **CLOSE)
        assert answer["blocks"].shape == (2, 8, 8)  # covers halves and quarters
        return
    else:
        expected = _mean(states, sizes)
    torch.testing.assert_close(answer, expected, **CLOSE)


def test_fedavgdbe_consensus_is_the_weighted_mean_of_trial_means(world):
    fed = world("fedavgdbe", momentum=0.3, train={"rounds": 1})
    before = fed.parameters()
    hands = [Hand("fedavgdbe", fed, client, ()) for client in fed.clients]
    fed.run()
    sizes = [len(c.train) for c in fed.clients]
    means = []
    for hand in hands:
        samples, mean = hand.client.train, torch.zeros(16)
        rng = stream(0, "trial", client=hand.client.id, round=0)
        order = torch.randperm(len(samples), generator=rng)
        for first in range(0, len(samples) - 15, 16):
            pick = order[first : first + 16]
            r = hand.model.extractor(samples.images[pick].float() / 255)
            mean = 0.7 * mean + 0.3 * r.detach().mean(0)
            params = list(hand.model.parameters())
            loss = ce(hand.model.head(r), samples.labels[pick])
            for p, g in zip(params, torch.autograd.grad(loss, params), strict=True):
                p.data -= 0.1 * g
        means.append(mean)
    sent = [u.artifacts[1].mean for u in fed.uploads(0)]
    torch.testing.assert_close(sent, means, **CLOSE)
    consensus = sum(n * m for n, m in zip(sizes, means, strict=True)) / sum(sizes)
    (answer,) = fed.broadcasts(0)
    torch.testing.assert_close(answer.artifacts[0].mean, consensus, **CLOSE)
    again = world("fedavgdbe", momentum=0.3, train={"rounds": 1})
    assert first_uploads(again.protocol, again.clients, again.setting, ())
    torch.testing.assert_close(again.parameters(), before, rtol=0, atol=0)  # trial discarded


@pytest.mark.parametrize("rule", ["nearest", "max-pair"])
def test_fedtgp_server_by_hand(world, rule):
    fed = world("fedtgp", margin=rule, server_epochs=3, train={"rounds": 1, "batch_size": 7})
    net = copy.deepcopy(fed.server.modules["prototypes"])
    fed.run()
    points = torch.cat([u.artifacts[0].means for u in fed.uploads(1)])
    labels = torch.cat([u.artifacts[0].labels for u in fed.uploads(1)])
    centres = [points[labels == c].mean(0) for c in labels.unique()]
    gaps = [[float((a - b).norm()) for b in centres if b is not a] for a in centres]
    margin = max(min(g) if rule == "nearest" else max(g) for g in gaps)
    rng = stream(0, "server", round=1)
    for _ in range(3):
        order = torch.randperm(len(points), generator=rng)
        for pick in order.split(7):
            t = net[3](torch.relu(net[1](net[0].weight)))
            logits = []
            for i in pick.tolist():
                away = [(points[i] - t[c]).norm() for c in range(10)]
                logits.append(
                    torch.stack([-d - margin * (c == int(labels[i])) for c, d in enumerate(away)])
                )
            loss = ce(torch.stack(logits), labels[pick])
            params = list(net.parameters())
            for p, g in zip(params, torch.autograd.grad(loss, params), strict=True):
                p.data -= 0.01 * g
    t = net[3](torch.relu(net[1](net[0].weight))).detach()
    (sent,) = fed.sent(2, 0)
    assert sent.labels.tolist() == list(range(10))
    torch.testing.assert_close(sent.means, t, **CLOSE)


def test_fedgen_generator_by_hand(world):
    fed = world("fedgen", train={"rounds": 1})
    net = copy.deepcopy(fed.server.modules["generator"]).train()
    fed.run()
    sizes = [len(c.train) for c in fed.clients]
    q = sum(torch.bincount(c.train.labels, minlength=10) for c in fed.clients)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.005)
    rng = stream(0, "generator", round=1)
    for _ in range(5):
        labels = torch.multinomial(q.double(), 16, True, generator=rng)
        noise = torch.randn(16, 12, generator=rng)
        made = net.net(torch.cat([noise, torch.eye(10)[labels]], 1))
        logits = 0
        for upload, n in zip(fed.uploads(1), sizes, strict=True):
            head = upload.artifacts[0].params
            logits = logits + n / sum(sizes) * (made @ head["weight"].T + head["bias"])
        optimiser.zero_grad()
        ce(logits, labels).backward()
        optimiser.step()
    sent, own = fed.sent(2, 0)[1].tensors(), _params(net)
    for params in (sent, own):  # has no effect before BatchNorm, and Adam moves it by rounding
        del params["params/net.0.bias"]
    torch.testing.assert_close(sent, own, **CLOSE)


def test_fpl_server_sends_the_means_of_clusters(world):
    fed = world("fpl", train={"rounds": 1})
    (one, two) = torch.eye(16)[0], torch.eye(16)[1]
    noise = 0.01 * torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    points = torch.stack([one, one, one, two, two, two]) + noise
    kind = type(fed.protocol.upload(fed.clients[0], Task(fed.setting, 1, 0))[0].artifact)
    several = [
        Upload(k, 1, (kind(points[[k, 3 + k]], torch.tensor([4, 4])),)) for k in range(3)
    ] + [Upload(3, 1, (kind(points[:1] * 3, torch.tensor([1])),))]
    (sent,) = server_step(fed.protocol, fed.server, several, Task(fed.setting, 1)).usual
    assert sent.labels.tolist() == [1, 4, 4]
    torch.testing.assert_close(sent.means[0], points[0] * 3)
    torch.testing.assert_close(
        sent.means[1:], torch.stack([points[:3].mean(0), points[3:].mean(0)])
    )
    later = [Upload(0, 2, (kind(points[:1], torch.tensor([7])),))]
    (sent,) = server_step(fed.protocol, fed.server, later, Task(fed.setting, 2)).usual
    assert sent.labels.tolist() == [1, 4, 4, 7]  # classes nobody refreshed keep their clusters


def test_fedala_mixing_by_hand(world):
    fed = world("fedala", train={"rounds": 1}, first_passes=3, eta=0.5, share=0.6)
    fed.run()
    client = fed.clients[1]
    own = {n: p.detach().clone() for n, p in fed.kept[1][1].model.named_parameters()}
    theta = dict(fed.sent(2, 1)[0].params)
    top, samples = ["head.weight", "head.bias"], client.train
    hand = copy.deepcopy(client.model)
    mix = {n: torch.ones_like(own[n]) for n in top}
    count = int(0.6 * len(samples))
    rng = stream(0, "ala", client=1, round=2)
    first = int(torch.randint(len(samples) - count + 1, (1,), generator=rng))
    for _ in range(3):  # the slice is drawn once a round
        for start in range(first, first + count, 16):
            pick = torch.arange(start, min(start + 16, first + count))
            for n, p in hand.named_parameters():
                at = theta[n] if n not in top else own[n] + (theta[n] - own[n]) * mix[n]
                p.data.copy_(at)
            loss = ce(hand(samples.images[pick].float() / 255), samples.labels[pick])
            slopes = torch.autograd.grad(loss, [hand.head.weight, hand.head.bias])
            for n, g in zip(top, slopes, strict=True):
                mix[n] = torch.clamp(mix[n] - 0.5 * g * (theta[n] - own[n]), 0, 1)
    for n, p in client.model.named_parameters():
        at = theta[n] if n not in top else own[n] + (theta[n] - own[n]) * mix[n]
        torch.testing.assert_close(p.detach(), at, **CLOSE)
    torch.testing.assert_close({n: client.tensors[f"mix/{n}"] for n in top}, mix, **CLOSE)
    assert all((m < 1).any() for m in mix.values())


def test_fedapen_relearns_its_weight_by_hand(world):
    fed = world("fedapen", lambda_lr=0.4, held_out=0.2, train={"rounds": 1, "batch_size": 4})
    fed.run()
    for client in fed.clients:
        held = client.train.take(client.held)
        images, share = held.images.float() / 255, 0.5
        with torch.no_grad():
            a, b = client.model(images), client.memory["small"](images)
        rng = stream(0, "lambda", client=client.id, round=2)
        for _ in range(10):
            for pick in torch.randperm(len(held), generator=rng).split(4):
                p = (share * a[pick] + (1 - share) * b[pick]).softmax(1)
                gap = p - torch.eye(10)[held.labels[pick]]
                slope = float((gap * (a[pick] - b[pick])).sum()) / len(pick)
                share = min(1.0, max(0.0, share - 0.4 * slope))
        assert float(client.tensors["lambda"]) == pytest.approx(share, abs=1e-4)
        assert share != 0.5
