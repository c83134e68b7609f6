// Acrobot in CUDA C++: the functions of acrobot.py.

__device__ State reset(const Key& key, const Params& p) {
    return {
        uniform(key, 0, p.low, p.high),
        uniform(key, 1, p.low, p.high),
        uniform(key, 2, p.low, p.high),
        uniform(key, 3, p.low, p.high),
    };
}

// The time derivative of the state.
__device__ __forceinline__ State slope(const State& s, float torque, const Params& p) {
    const auto [sin1, cos1] = sincos(s.theta1);
    const auto [sin2, cos2] = sincos(s.theta2);
    const float w1 = s.theta1_dot, w2 = s.theta2_dot;
    const float lever = p.mass2 * p.length1 * p.com2;
    const float reach = p.mass2 * (p.com2 * p.com2) + p.inertia;  // inertia of the second link about the joint

    const float d1 =
        p.mass1 * (p.com1 * p.com1) + p.mass2 * (p.length1 * p.length1) + p.inertia + reach + 2.0f * lever * cos2;
    const float d2 = reach + lever * cos2;
    const float phi2 = p.mass2 * p.com2 * p.gravity * (sin1 * cos2 + cos1 * sin2);
    const float phi1 =
        (p.mass1 * p.com1 + p.mass2 * p.length1) * p.gravity * sin1 + phi2 - lever * w2 * (w2 + 2.0f * w1) * sin2;
    // d1 a1 + d2 a2 = pull1 and d2 a1 + reach a2 = pull2 for the accelerations, of which the determinant is never near zero
    const float inverse = 1.0f / (d1 * reach - d2 * d2);
    const float pull1 = -phi1, pull2 = torque - lever * (w1 * w1) * sin2 - phi2;
    return {w1, w2, (reach * pull1 - d2 * pull2) * inverse, (d1 * pull2 - d2 * pull1) * inverse};
}

// The state that slope `k` leads to in time `t`.
__device__ __forceinline__ State along(const State& s, const State& k, float t) {
    return {
        s.theta1 + t * k.theta1,
        s.theta2 + t * k.theta2,
        s.theta1_dot + t * k.theta1_dot,
        s.theta2_dot + t * k.theta2_dot,
    };
}

// The state after `dt`, by the classical Runge-Kutta method of order four.
__device__ __forceinline__ State runge_kutta(const State& s, float torque, const Params& p) {
    const State k1 = slope(s, torque, p);
    const State k2 = slope(along(s, k1, 0.5f * p.dt), torque, p);
    State total = along(k1, k2, 2.0f);
    const State k3 = slope(along(s, k2, 0.5f * p.dt), torque, p);
    total = along(total, k3, 2.0f);
    const State k4 = slope(along(s, k3, p.dt), torque, p);
    return along(s, along(total, k4, 1.0f), p.dt / 6.0f);
}

__device__ Step step(State s, Action action, const Key& key, const Params& p) {
    s = runge_kutta(s, action == 2 ? p.torque : action == 0 ? -p.torque : 0.0f, p);
    s = {
        wrap(s.theta1),
        wrap(s.theta2),
        fminf(fmaxf(s.theta1_dot, -p.max_speed1), p.max_speed1),
        fminf(fmaxf(s.theta2_dot, -p.max_speed2), p.max_speed2),
    };
    const auto [sin1, cos1] = sincos(s.theta1);
    const auto [sin2, cos2] = sincos(s.theta2);
    const bool up = -p.length1 * cos1 - p.length2 * (cos1 * cos2 - sin1 * sin2) > p.goal_height;
    return {s, up ? 0.0f : -1.0f, up};
}

__device__ Floats<6> observe(const State& s, const Params& p) {
    const auto [sin1, cos1] = sincos(s.theta1);
    const auto [sin2, cos2] = sincos(s.theta2);
    return {cos1, sin1, cos2, sin2, s.theta1_dot, s.theta2_dot};
}
