// CartPole in CUDA C++: the functions of cartpole.py.

__device__ State reset(const Key& key, const Params& p) {
    return {
        uniform(key, 0, p.low, p.high),
        uniform(key, 1, p.low, p.high),
        uniform(key, 2, p.low, p.high),
        uniform(key, 3, p.low, p.high),
    };
}

__device__ Step step(State s, Action action, const Key& key, const Params& p) {
    const float mass = p.cart_mass + p.pole_mass;
    const float share = p.pole_mass / mass;  // of the pole in the mass
    const float push = p.force / mass;       // [m/s^2]
    const auto [sin, cos] = sincos(s.theta);

    const float drive = (action == 1 ? push : -push) + share * p.half_length * (s.theta_dot * s.theta_dot) * sin;
    const float theta_acc = (p.gravity * sin - cos * drive) / (p.half_length * (4.0f / 3.0f - share * (cos * cos)));
    const float x_acc = drive - share * p.half_length * cos * theta_acc;

    s = {
        s.x + p.dt * s.x_dot,
        s.x_dot + p.dt * x_acc,
        s.theta + p.dt * s.theta_dot,
        s.theta_dot + p.dt * theta_acc,
    };
    const bool fallen = fabsf(s.x) > p.x_limit || fabsf(s.theta) > p.theta_limit;
    const float reward = p.sutton_barto_reward ? (fallen ? -1.0f : 0.0f) : 1.0f;
    return {s, reward, fallen};
}

__device__ Floats<4> observe(const State& s, const Params& p) { return {s.x, s.x_dot, s.theta, s.theta_dot}; }
