// TagContinuous in CUDA C++: the functions of tag_continuous.py.

constexpr int TAGGER = 0, RUNNER = 1;  // roles
constexpr float TURN = 6.28318530717958648f, QUARTER = 1.57079632679489662f, ROOT2 = 1.41421356237309505f;

__device__ void reset(int i, State& s, const Key& key, const Params& p) {
    s.x[i] = uniform(key, 3 * i, 0.0f, p.grid_length);
    s.y[i] = uniform(key, 3 * i + 1, 0.0f, p.grid_length);
    s.heading[i] = (float)randint(key, 3 * i + 2, 0, 4) * QUARTER;
    s.speed[i] = s.acceleration[i] = 0.0f;
    s.alive[i] = s.playing[i] = true;
    s.hit_edge[i] = false;
    s.tagged_by[i] = -1;
}

__device__ __forceinline__ float clip(float x, float low, float high) { return fminf(fmaxf(x, low), high); }

struct Steering { float acceleration, turn; };

// Returns the acceleration and the turn of an action.
__device__ __forceinline__ Steering steer(Action action, const Params& p) {
    if (!p.continuous_actions) return {p.acceleration_levels[(int)action[0]], p.turn_levels[(int)action[1]]};
    return {
        clip(action[0], fminf(p.min_acceleration, 0.0f), fmaxf(p.max_acceleration, 0.0f)),
        clip(action[1], fminf(p.min_turn, 0.0f), fmaxf(p.max_turn, 0.0f)),
    };
}

// Wraps an angle between -2 pi and 4 pi to [0, 2 pi).
__device__ __forceinline__ float wrap_heading(float angle) {
    if (angle >= TURN) return angle - TURN;
    return angle < 0.0f ? angle + TURN : angle;
}

__device__ void move(int i, State& s, Action action, const Key& key, const Params& p) {
    const bool alive = s.alive[i];
    s.playing[i] = alive;
    auto [acceleration, heading_change] = steer(action, p);
    acceleration += s.acceleration[i];
    const float top_speed = p.max_speed * (s.role[i] == TAGGER ? p.skill_level_tagger : p.skill_level_runner);
    const float heading = alive ? wrap_heading(s.heading[i] + heading_change) : 0.0f;
    const float speed = alive ? clip(s.speed[i] + acceleration, 0.0f, top_speed) : 0.0f;
    s.heading[i] = heading;
    s.speed[i] = speed;
    s.acceleration[i] = speed <= 0.0f || speed >= top_speed ? 0.0f : acceleration;

    const auto [sin, cos] = sincos(heading);
    const float x = s.x[i] + speed * cos, y = s.y[i] + speed * sin;
    const float clipped_x = clip(x, 0.0f, p.grid_length), clipped_y = clip(y, 0.0f, p.grid_length);
    s.x[i] = clipped_x;
    s.y[i] = clipped_y;
    s.hit_edge[i] = x != clipped_x || y != clipped_y;
}

// Returns the squared distance between agents i and j.
__device__ __forceinline__ float squared_distance(int i, int j, const State& s) {
    const float x = s.x[i] - s.x[j], y = s.y[i] - s.y[j];
    return x * x + y * y;
}

// Phase in which each runner determines the agent that tags it.
__device__ void tag(int i, State& s, Action action, const Key& key, const Params& p) {
    s.tagged_by[i] = -1;
    if (s.role[i] != RUNNER || !s.playing[i]) return;
    float min_distance2 = INFINITY;
    int tagger = -1;
    for (int k = 0; k < p.num_taggers; k++) {
        const int j = s.agents_by_role[k];
        const float distance2 = squared_distance(i, j, s);
        if (distance2 < min_distance2) min_distance2 = distance2, tagger = j;
    }
    if (sqrtf(min_distance2) < p.tagging_distance * p.grid_length) {
        s.tagged_by[i] = tagger;
        s.alive[i] = !p.runner_exits_game_after_tagged;
    }
}

__device__ bool active(int i, const State& s, const Params& p) { return s.alive[i]; }

__device__ float reward(int i, const State& s, Time t, const Params& p) {
    if (!s.playing[i]) return 0.0f;
    float total = s.hit_edge[i] ? p.edge_hit_penalty : 0.0f;
    if (s.role[i] == TAGGER) {
        total += p.step_penalty_for_tagger;
        for (int k = p.num_taggers; k < AGENTS; k++)
            if (s.tagged_by[s.agents_by_role[k]] == i) total += p.tag_reward_for_tagger;
        return total;
    }
    total += p.step_reward_for_runner;
    if (s.tagged_by[i] >= 0) total += p.tag_penalty_for_runner;
    if (t.step >= t.limit && s.alive[i]) total += p.end_of_game_reward_for_runner;
    return total;
}

// Returns the vote of an agent: only an active runner votes against the end.
__device__ bool terminated(int i, const State& s, const Params& p) { return s.role[i] == TAGGER || !s.alive[i]; }

__device__ Floats<7> other_features(int i, int slot, const State& s, Time t, const Params& p) {
    const int j = !p.use_full_observation ? s.nearest[i][slot] : slot >= i ? slot + 1 : slot;
    if (j < 0) return {};
    // All differences of an inactive agent are 0.
    const float mask = s.playing[i] ? 1.0f : 0.0f;
    const float length_scale = mask * (1.0f / (p.grid_length * ROOT2));
    const float speed_scale = mask * (1.0f / (p.max_speed + 1e-10f)), heading_scale = mask * (1.0f / TURN);
    return {
        (s.x[j] - s.x[i]) * length_scale,
        (s.y[j] - s.y[i]) * length_scale,
        (s.speed[j] - s.speed[i]) * speed_scale,
        (s.acceleration[j] - s.acceleration[i]) * speed_scale,
        (s.heading[j] - s.heading[i]) * heading_scale,
        s.role[j] == TAGGER ? 1.0f : 0.0f,
        s.playing[j] ? 1.0f : 0.0f,
    };
}

__device__ Floats<1> time(int i, const State& s, Time t, const Params& p) {
    return {s.playing[i] ? fraction(t.step, t.limit) : 0.0f};
}

__device__ Floats<6> self_features_and_time(int i, const State& s, Time t, const Params& p) {
    const float tagger = s.role[i] == TAGGER ? 1.0f : 0.0f, scale = 1.0f / (p.max_speed + 1e-10f);
    if (!s.playing[i]) return {tagger, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    const auto [sin, cos] = sincos(s.heading[i]);
    return {tagger, s.speed[i] * scale, s.acceleration[i] * scale, cos, sin, fraction(t.step, t.limit)};
}

__device__ float distance(int i, int j, const State& s, const Params& p) {
    // Both are loaded before the branch, so that a thread waits only once.
    const float distance2 = squared_distance(i, j, s);
    const bool playing = s.playing[j];
    return playing && i != j ? distance2 : INFINITY;
}

__device__ bool searches(int i, const State& s, const Params& p) { return s.playing[i]; }
