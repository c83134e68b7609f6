"""Actions drawn by kernels: the same on every backend and for any number of rows, and distributed as in torch."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gpuvec.errors import ActionError
from gpuvec.learners.sampling.sampler import ActionSample, Sampler  # imported after torch, which it needs

R = 50_000
SIZES = (2, 5, 3)


def tensors(backend, *arrays):
    return [None if x is None else torch.as_tensor(x).to("cuda" if backend == "cuda" else "cpu") for x in arrays]


def sampler(backend, seed=3, stream=0):
    return Sampler({"cuda": "cuda:0"}.get(backend, backend), seed, stream)


def numbers(rows, width, seed=0, scale=1.5):
    return np.random.default_rng(seed).normal(0.0, scale, (rows, width)).astype(np.float32)


def draw(backend, logits, *, iteration=0, step=0, mask=None, seed=3, stream=0, **options):
    logits, mask, iteration = tensors(backend, logits, mask, np.int64(iteration))
    return sampler(backend, seed, stream).categorical(logits, iteration, step, mask=mask, **options)


def draw_normal(backend, mean, log_std, *, iteration=0, step=0, seed=3, stream=0, **options):
    mean, log_std, iteration = tensors(backend, mean, log_std, np.int64(iteration))
    return sampler(backend, seed, stream).gaussian(mean, log_std, iteration, step, **options)


def host(drawn):
    return [x.cpu().numpy() for x in drawn]


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_each_of_several_policies_draws_what_it_draws_alone(device, kind):
    seeds, rows = [5, 2**63 - 1, 5], 4
    x = numbers(len(seeds) * rows, 3)
    draw_one = (
        draw
        if kind == "categorical"
        else lambda device, mean, **options: draw_normal(device, mean, numbers(1, 3)[0], **options)
    )
    together = host(draw_one(device, x, seed=seeds, iteration=7, step=2))
    for k, seed in enumerate(seeds):
        own = slice(k * rows, (k + 1) * rows)
        for drawn, alone in zip(together, host(draw_one(device, x[own], seed=seed, iteration=7, step=2)), strict=True):
            np.testing.assert_array_equal(drawn[own], alone)
    with pytest.raises(ValueError, match="3 policies must have equally many rows, got 11"):
        draw_one(device, x[:11], seed=seeds)


class TestCategorical:
    def test_log_probabilities_and_entropies_equal_those_of_torch(self, backend):
        logits = numbers(40, sum(SIZES), scale=4.0)
        drawn = draw(backend, logits, sizes=SIZES)
        heads = [torch.distributions.Categorical(logits=part) for part in torch.from_numpy(logits).split(SIZES, -1)]
        action = drawn.action.cpu()
        known = sum(head.log_prob(action[:, k]) for k, head in enumerate(heads))
        torch.testing.assert_close(drawn.log_prob.cpu(), known, rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(drawn.entropy.cpu(), sum(head.entropy() for head in heads), rtol=1e-5, atol=2e-6)

    def test_backends_agree(self, backend):
        logits = numbers(40, 7)
        known, actual = host(draw("cpu", logits)), host(draw(backend, logits))
        exact = backend != "cuda"  # CUDA has another implementation of exp
        assert (known[0] == actual[0]).mean() >= (1.0 if exact else 0.95)
        same = known[0] == actual[0]
        for k in (1, 2):
            np.testing.assert_allclose(actual[k][same], known[k][same], rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)

    def test_action_frequencies_match_their_probabilities(self, device):
        logits = np.array([0.0, 1.0, -1.0, 0.5, 2.0], np.float32)
        action = draw(device, np.tile(logits, (R, 1)), sizes=(2, 3)).action.cpu().numpy()
        for k, part in enumerate((logits[:2], logits[2:])):
            chance = np.exp(part) / np.exp(part).sum()
            frequency = np.bincount(action[:, k], minlength=len(part)) / R
            assert (np.abs(frequency - chance) < 5 * np.sqrt(chance * (1 - chance) / R)).all()
        joint = np.bincount(action[:, 0] * 3 + action[:, 1], minlength=6).reshape(2, 3) / R
        assert np.abs(joint - joint.sum(1, keepdims=True) * joint.sum(0)).max() < 5 * 0.5 / math.sqrt(R)  # independent

    def test_the_temperature_divides_the_logits(self, device):
        logits = numbers(100, 5)
        np.testing.assert_array_equal(*(host(x)[0] for x in (draw(device, logits, temperature=0.5), draw(device, logits * 2))))
        assert (host(draw(device, logits, temperature=1e-4))[0] == logits.argmax(1)).all()

    def test_greedy_takes_the_first_of_the_likeliest_actions(self, backend):
        logits = np.array([[0.0, 3.0, 3.0], [1.0, 0.0, 0.5], [2.0, 2.0, 2.0]], np.float32)
        assert host(draw(backend, logits, greedy=True))[0].tolist() == [1, 0, 0]

    def test_masked_actions_are_never_drawn_and_have_no_probability(self, backend):
        rows = 40 if backend == "simulator" else 2000
        logits, mask = numbers(rows, 6), np.random.default_rng(1).random((rows, 6)) < 0.5
        mask[np.arange(rows), np.arange(rows) % 6] = True
        action, log_prob, entropy = host(draw(backend, logits, mask=mask))
        assert mask[np.arange(rows), action].all()
        allowed = torch.distributions.Categorical(logits=torch.from_numpy(np.where(mask, logits, -1e9).astype(np.float32)))
        np.testing.assert_allclose(log_prob, allowed.log_prob(torch.from_numpy(action)), rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(entropy, allowed.entropy(), rtol=1e-5, atol=2e-6)
        lone = mask.sum(1) == 1
        assert lone.any()
        assert (log_prob[lone] == 0.0).all()

    def test_a_logit_of_minus_infinity_is_a_forbidden_action(self, device):
        logits = numbers(200, 4)
        logits[:, 2] = -np.inf
        action, log_prob, entropy = host(draw(device, logits))
        assert set(action) == {0, 1, 3}
        assert np.isfinite(log_prob).all()
        assert np.isfinite(entropy).all()

    def test_large_logits_do_not_overflow(self, device):
        drawn = draw(device, np.array([[1e30, -1e30, 0.0]], np.float32))
        assert [x.item() for x in drawn] == [0, 0.0, 0.0]


class TestGaussian:
    @pytest.mark.parametrize("shared", [True, False])
    def test_log_probabilities_and_entropies_equal_those_of_torch(self, backend, shared):
        mean, log_std = numbers(40, 3), numbers(1 if shared else 40, 3, seed=1, scale=0.5)
        log_std = log_std[0] if shared else log_std
        action, log_prob, entropy = (x.cpu() for x in draw_normal(backend, mean, log_std))
        known = torch.distributions.Normal(torch.from_numpy(mean), torch.from_numpy(log_std).exp().expand(40, 3))
        torch.testing.assert_close(log_prob, known.log_prob(action).sum(-1), rtol=1e-5, atol=5e-6)
        torch.testing.assert_close(entropy, known.entropy().sum(-1), rtol=1e-5, atol=2e-6)

    def test_samples_have_the_given_mean_and_variance(self, device):
        z = host(draw_normal(device, np.zeros((R, 2), np.float32), np.log(np.array([1.0, 2.0], np.float32))))[0] / [1.0, 2.0]
        assert np.abs(z.mean(0)).max() < 5 / math.sqrt(R)
        assert np.abs(z.var(0) - 1).max() < 5 * math.sqrt(2 / R)
        assert abs((z[:, 0] * z[:, 1]).mean()) < 5 / math.sqrt(R)

    def test_components_share_no_random_words(self, device):
        """If they did, their magnitudes would depend on each other, though the components were not correlated."""
        z = host(draw_normal(device, np.zeros((R, 4), np.float32), np.zeros(4, np.float32)))[0].astype(np.float64)
        correlations = np.corrcoef(z**2, rowvar=False) - np.eye(4)
        assert np.abs(correlations).max() < 5 / math.sqrt(R)

    def test_squashed_log_probabilities_equal_those_of_torch(self, device):
        mean, log_std = numbers(500, 2), np.full(2, -0.3, np.float32)
        x, log_prob, entropy = (y.cpu() for y in draw_normal(device, mean, log_std, squashed=True))
        normal = torch.distributions.Normal(torch.from_numpy(mean).double(), math.exp(-0.3))
        squashed = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform(cache_size=1))
        known = squashed.log_prob(x.double().tanh()).sum(-1)
        invertible = x.abs().amax(1) < 4.0  # where the inverse of the hyperbolic tangent, which torch needs, has digits left
        torch.testing.assert_close(log_prob[invertible].double(), known[invertible], rtol=1e-4, atol=1e-4)
        assert torch.equal(entropy, -log_prob)

    def test_squashed_log_probabilities_stay_finite_far_from_zero(self, device):
        drawn = draw_normal(device, np.array([[40.0, -40.0]], np.float32), np.zeros(2, np.float32), squashed=True)
        assert torch.isfinite(drawn.log_prob).all()

    def test_greedy_takes_the_mean(self, backend):
        mean = numbers(8, 2)
        np.testing.assert_array_equal(host(draw_normal(backend, mean, np.zeros(2, np.float32), greedy=True))[0], mean)


class TestKeys:
    """A draw depends on seed, stream, row, iteration and step, and on nothing else."""

    def test_draws_do_not_depend_on_the_number_of_rows(self, device):
        logits = numbers(5000, 6)
        many = host(draw(device, logits))
        for rows in (1, 31, 257, 4999):
            for known, actual in zip(many, host(draw(device, logits[:rows])), strict=True):
                np.testing.assert_array_equal(actual, known[:rows])

    @pytest.mark.parametrize(
        "other", [{"seed": 4}, {"seed": 3 + 2**40}, {"stream": 1}, {"iteration": 1}, {"step": 1}, {"iteration": 2**31 + 5}]
    )
    @pytest.mark.parametrize("normal", [False, True])
    def test_draws_depend_on_every_part_of_the_key(self, device, normal, other):
        def sample(**key):
            if normal:
                return host(draw_normal(device, np.zeros((1000, 1), np.float32), np.zeros(1, np.float32), **key))[0]
            return host(draw(device, np.zeros((1000, 100), np.float32), **key))[0]

        first, second = sample(), sample(**other)
        assert (first == second).mean() < 0.03
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.15
        np.testing.assert_array_equal(first, sample())

    def test_an_environment_with_the_same_seed_has_other_random_numbers(self, device):
        import gymnasium

        import gpuvec  # noqa: F401  # registers the environments

        env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=1000, device=device)
        start = env.reset(seed=3)[0].cpu().numpy()[:, 0]
        env.close()
        drawn = host(draw_normal(device, np.zeros((1000, 1), np.float32), np.zeros(1, np.float32)))[0][:, 0]
        assert abs(np.corrcoef(start, drawn)[0, 1]) < 0.15
        actions = host(draw(device, np.zeros((1000, 64), np.float32)))[0]
        assert abs(np.corrcoef(start, actions)[0, 1]) < 0.15


class TestNoise:
    def noisy(self, device, noise, ended, mean=None, step=0, **options):
        width = noise.shape[1]
        mean = torch.zeros_like(noise) if mean is None else mean
        (iteration,) = tensors(device, np.int64(0))
        high = torch.full((width,), 1e6, device=noise.device)
        return sampler(device).ornstein_uhlenbeck(mean, noise, ended, -high, high, iteration, step, **options)

    def test_noise_follows_the_equation_of_the_process(self, backend):
        noise, ended = tensors(backend, numbers(30, 2), np.arange(30) % 3 == 0)
        before = noise.clone()
        (iteration,) = tensors(backend, np.int64(0))
        z = sampler(backend).gaussian(torch.zeros_like(noise), torch.zeros(2, device=noise.device), iteration, 0).action
        action = self.noisy(backend, noise, ended, theta=0.2, sigma=0.3, dt=0.5)
        start = before.masked_fill(ended.unsqueeze(1), 0.0)
        torch.testing.assert_close(noise, start - 0.2 * 0.5 * start + 0.3 * math.sqrt(0.5) * z, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(action, noise)

    def test_the_first_iterations_draw_uniform_actions_without_noise(self, device):
        noise, mean, ended, low, high = tensors(
            device, np.ones((20_000, 2), np.float32), np.full((20_000, 2), 9.0, np.float32), np.zeros(20_000, bool),
            np.float32([-1, 2]), np.float32([1, 6]),
        )  # fmt: skip
        for iteration in range(3):
            (counter,) = tensors(device, np.int64(iteration))
            action = sampler(device).ornstein_uhlenbeck(
                mean, noise, ended, low, high, counter, 0, sigma=0.0, theta=0.0, uniform_iterations=2
            )
            assert not noise.any()
            if iteration < 2:
                uniform = ((action - low) / (high - low)).cpu().double()
                assert (uniform.min(0).values < 1e-3).all()
                assert (uniform.max(0).values > 1.0 - 1e-3).all()
                assert (uniform.mean(0) - 0.5).abs().max() < 5 * math.sqrt(1 / 12 / 20_000)
                assert (uniform.var(0) - 1 / 12).abs().max() < 5 * math.sqrt(1 / 180 / 20_000)
                assert abs(float(torch.corrcoef(uniform.T)[0, 1])) < 5 / math.sqrt(20_000)
        assert action.cpu().tolist() == [[1.0, 6.0]] * 20_000

    def test_variance_and_autocorrelation_are_those_of_the_process(self, device):
        noise, ended = tensors(device, np.zeros((20_000, 1), np.float32), np.zeros(20_000, bool))
        for t in range(60):
            last = noise.clone()
            self.noisy(device, noise, ended, step=t, theta=0.15, sigma=0.2)
        variance = 0.2**2 / (1 - 0.85**2)
        assert abs(noise.var().item() / variance - 1) < 0.05
        assert abs((noise * last).mean().item() / variance - 0.85) < 0.03

    def test_a_theta_of_one_gives_independent_noise(self, device):
        noise, ended = tensors(device, np.full((R, 1), 5.0, np.float32), np.zeros(R, bool))
        self.noisy(device, noise, ended, theta=1.0, sigma=0.1)
        assert abs(noise.mean().item()) < 0.003
        assert abs(noise.std().item() - 0.1) < 0.003

    def test_actions_are_clipped_and_the_noise_is_not(self, device):
        noise, ended, low, high = tensors(
            device, np.array([[3.0, -3.0]], np.float32), np.zeros(1, bool), np.float32([-1, -2]), np.float32([1, 2])
        )
        (iteration,) = tensors(device, np.int64(0))
        action = sampler(device).ornstein_uhlenbeck(
            torch.zeros_like(noise), noise, ended, low, high, iteration, 0, sigma=0.0, theta=0.0
        )
        assert action.tolist() == [[1.0, -2.0]]
        assert noise.tolist() == [[3.0, -3.0]]


class TestBadInput:
    def test_errors_name_the_wrong_tensor(self):
        s, clock = Sampler("cpu", 0), torch.tensor(0)
        logits = torch.zeros(4, 3)
        with pytest.raises(TypeError, match=r"logits must be torch\.float32, got torch\.float64"):
            s.categorical(logits.double(), clock, 0)
        with pytest.raises(ValueError, match=r"logits must be C-contiguous, of shape \(3, 4\) .* not contiguous"):
            s.categorical(logits.T, clock, 0)
        with pytest.raises(ValueError, match=r"mask must be C-contiguous, of shape \(4, 3\) on cpu, got \(4,\)"):
            s.categorical(logits, clock, 0, mask=torch.ones(4, dtype=torch.bool))
        with pytest.raises(ValueError, match="sizes must add up to the 3 logits"):
            s.categorical(logits, clock, 0, sizes=(2, 2))
        with pytest.raises(ValueError, match="temperature must be above 0"):
            s.categorical(logits, clock, 0, temperature=0.0)
        with pytest.raises(TypeError, match=r"iteration must be torch\.int64"):
            s.categorical(logits, torch.tensor(0.0), 0)
        with pytest.raises(TypeError, match=r"action must be torch\.int64"):
            s.categorical(logits, clock, 0, out=ActionSample(torch.zeros(4), torch.zeros(4), torch.zeros(4)))
        mask = torch.tensor([[True, True, False]] * 4)
        with pytest.raises(ActionError, match=r"mask of row 0 allows no action of head 1"):
            s.categorical(logits, clock, 0, sizes=(2, 1), mask=mask)
        mask[2] = False
        with pytest.raises(ActionError, match=r"mask of row 2 allows no action: at least one"):
            s.categorical(logits, clock, 0, mask=mask)
        with pytest.raises(ValueError, match="stream must be from 0"):
            Sampler("cpu", 0, 4000)
        with pytest.raises(ValueError, match="seed must be from 0"):
            Sampler("cpu", -1)


def test_a_captured_draw_is_new_in_each_replay(gpu):
    logits, clock = torch.zeros(1000, 100, device="cuda"), torch.zeros((), dtype=torch.int64, device="cuda")
    s = sampler("cuda")
    out = s.categorical(logits, clock, 0)
    eager = []
    for k in range(3):
        clock.fill_(k)
        eager.append(s.categorical(logits, clock, 0).action)
    clock.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other libraries in the process have threads
        s.categorical(logits, clock, 0, out=out)
        clock.add_(1)
    for known in eager:
        graph.replay()
        assert torch.equal(out.action, known)
