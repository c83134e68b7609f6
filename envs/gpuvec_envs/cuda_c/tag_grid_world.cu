// TagGridWorld in CUDA C++: the functions of tag_grid_world.py.

constexpr int TAGGER = 0, RUNNER = 1;  // roles

__device__ void reset(int i, State& s, const Key& key, const Params& p) {
    const int side = p.grid_length + 1, runner = s.agents_by_role[p.num_taggers];
    int cell = randint(key, runner, 0, side * side);  // the runner's
    // All agents draw a second number, though the runner does not use it: so a GPU computes both draws together.
    const int draw = i != runner ? i : AGENTS;
    const int other_cell = randint(key, draw, 0, side * side - 1);
    // A tagger gets one of the cells other than the runner's.
    if (i != runner) cell = other_cell >= cell ? other_cell + 1 : other_cell;
    s.x[i] = (unsigned)cell % (unsigned)side;
    s.y[i] = (unsigned)cell / (unsigned)side;
    s.hit_wall[i] = false;
}

__device__ void move(int i, State& s, Action action, const Key& key, const Params& p) {
    const int x = s.x[i] + (action == 1 ? 1 : action == 2 ? -1 : 0);
    const int y = s.y[i] + (action == 3 ? 1 : action == 4 ? -1 : 0);
    const int column = min(max(x, 0), p.grid_length), row = min(max(y, 0), p.grid_length);
    s.x[i] = column;
    s.y[i] = row;
    s.hit_wall[i] = x != column || y != row;
}

// Returns whether agent i is a tagger in the runner's cell.
__device__ bool is_tagging(int i, const State& s, const Params& p) {
    const int runner = s.agents_by_role[p.num_taggers];
    return i != runner && s.x[i] == s.x[runner] && s.y[i] == s.y[runner];
}

__device__ float reward(int i, const State& s, Time t, const Params& p) {
    const float wall = s.hit_wall[i] ? p.wall_hit_penalty : 0.0f;
    if (s.role[i] == TAGGER) return (s.tagged ? p.tag_reward_for_tagger : -p.step_cost_for_tagger) - wall;
    return (s.tagged ? -p.tag_penalty_for_runner : p.step_cost_for_tagger) - wall;
}

__device__ bool terminated(int i, const State& s, const Params& p) { return s.tagged; }

__device__ __forceinline__ float role_feature(int i, const State& s) { return s.role[i] == RUNNER ? 1.0f : 0.0f; }

__device__ Floats<1> time(int i, const State& s, Time t, const Params& p) { return {fraction(t.step, t.limit)}; }

__device__ Floats<4> other_features(int i, int j, const State& s, Time t, const Params& p) {
    return {fraction(s.x[j], p.grid_length), fraction(s.y[j], p.grid_length), role_feature(j, s), i == j ? 1.0f : 0.0f};
}

// Returns the squared distance of tagger i from the runner, and infinity for the runner itself.
__device__ float squared_distance_to_runner(int i, const State& s, const Params& p) {
    const int j = s.agents_by_role[p.num_taggers];
    if (i == j) return INFINITY;
    const float x = (float)s.x[i] - (float)s.x[j], y = (float)s.y[i] - (float)s.y[j];
    return x * x + y * y;
}

// Returns a partial observation.
__device__ Floats<6> partial_features(int i, const State& s, Time t, const Params& p) {
    const int length = p.grid_length;
    const int j = s.role[i] == RUNNER ? s.nearest_tagger : s.agents_by_role[p.num_taggers];
    return {
        fraction(s.x[i], length),
        fraction(s.y[i], length),
        fraction(s.x[j], length),
        fraction(s.y[j], length),
        role_feature(i, s),
        fraction(t.step, t.limit),
    };
}
