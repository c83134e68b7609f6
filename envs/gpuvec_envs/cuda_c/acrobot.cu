// Acrobot in CUDA C++: the functions of acrobot.py.

__device__ State reset(const Key& key, const Params& p) {
    return {
        uniform(key, 0, p.low, p.high),
        uniform(key, 1, p.low, p.high),
        uniform(key, 2, p.low, p.high),
        uniform(key, 3, p.low, p.high),
    };
}

// Returns the time derivative of the state.
__device__ __forceinline__ State derivative(const State& s, float torque, const Params& p) {
    const auto [sin1, cos1] = sincos(s.theta1);
    const auto [sin2, cos2] = sincos(s.theta2);
    const float w1 = s.theta1_dot, w2 = s.theta2_dot;
    const float coupling = p.mass2 * p.length1 * p.com2;
    const float inertia2 = p.mass2 * (p.com2 * p.com2) + p.inertia;  // of the second link about the joint

    const float d1 =
        p.mass1 * (p.com1 * p.com1) + p.mass2 * (p.length1 * p.length1) + p.inertia + inertia2 + 2.0f * coupling * cos2;
    const float d2 = inertia2 + coupling * cos2;
    const float phi2 = p.mass2 * p.com2 * p.gravity * (sin1 * cos2 + cos1 * sin2);
    const float phi1 =
        (p.mass1 * p.com1 + p.mass2 * p.length1) * p.gravity * sin1 + phi2 - coupling * w2 * (w2 + 2.0f * w1) * sin2;
    // The accelerations solve d1 a1 + d2 a2 = rhs1 and d2 a1 + inertia2 a2 = rhs2, whose determinant is never close to 0.
    const float inverse_determinant = 1.0f / (d1 * inertia2 - d2 * d2);
    const float rhs1 = -phi1, rhs2 = torque - coupling * (w1 * w1) * sin2 - phi2;
    return {w1, w2, (inertia2 * rhs1 - d2 * rhs2) * inverse_determinant, (d1 * rhs2 - d2 * rhs1) * inverse_determinant};
}

// Returns the state after time `t` with the constant derivative `k`.
__device__ __forceinline__ State advance(const State& s, const State& k, float t) {
    return {
        s.theta1 + t * k.theta1,
        s.theta2 + t * k.theta2,
        s.theta1_dot + t * k.theta1_dot,
        s.theta2_dot + t * k.theta2_dot,
    };
}

// Returns the state after `dt`, by the classical Runge-Kutta method of order four.
__device__ __forceinline__ State runge_kutta(const State& s, float torque, const Params& p) {
    const State k1 = derivative(s, torque, p);
    const State k2 = derivative(advance(s, k1, 0.5f * p.dt), torque, p);
    State total = advance(k1, k2, 2.0f);
    const State k3 = derivative(advance(s, k2, 0.5f * p.dt), torque, p);
    total = advance(total, k3, 2.0f);
    const State k4 = derivative(advance(s, k3, p.dt), torque, p);
    return advance(s, advance(total, k4, 1.0f), p.dt / 6.0f);
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
    const bool terminated = -p.length1 * cos1 - p.length2 * (cos1 * cos2 - sin1 * sin2) > p.goal_height;
    return {s, terminated ? 0.0f : -1.0f, terminated};
}

__device__ Floats<6> observe(const State& s, const Params& p) {
    const auto [sin1, cos1] = sincos(s.theta1);
    const auto [sin2, cos2] = sincos(s.theta2);
    return {cos1, sin1, cos2, sin2, s.theta1_dot, s.theta2_dot};
}
