// Breakout in CUDA C++: the functions of breakout.py.

constexpr int LAST = BRICKS_ROWS - 1;  // the row of the paddle, and the last column
constexpr int LEFT = 1, RIGHT = 2;     // actions
constexpr int UP_RIGHT = 1, DOWN_RIGHT = 2, DOWN_LEFT = 3;  // directions of the ball; 0 is up and to the left
constexpr int FIRST_ROW = 3;           // of the ball

// Returns the direction after a bounce off a side wall.
__device__ int mirror_x(int direction) { return direction ^ 1; }

// Returns the direction after a bounce off the ceiling, a brick or the paddle.
__device__ int mirror_y(int direction) { return 3 - direction; }

// Returns the direction after a bounce off the edge of the paddle.
__device__ int reverse(int direction) { return (direction + 2) & 3; }

__device__ void build_wall(State& s, const Params& p) {
    for (int y = 0; y < BRICKS_ROWS; y++)
        for (int x = 0; x < BRICKS_COLUMNS; x++) s.bricks[y][x] = 1 <= y && y <= p.brick_rows;
}

__device__ bool any_brick(const State& s) {
    for (int y = 0; y < BRICKS_ROWS; y++)
        for (int x = 0; x < BRICKS_COLUMNS; x++)
            if (s.bricks[y][x]) return true;
    return false;
}

__device__ State reset(State s, const Key& key, const Params& p) {
    build_wall(s, p);
    const bool from_right = randint(key, 0, 0, 2) == 1;
    const int x = from_right ? LAST : 0;
    return {FIRST_ROW, x, from_right ? DOWN_LEFT : DOWN_RIGHT, BRICKS_COLUMNS / 2 - 1, FIRST_ROW, x, false, s.bricks};
}

__device__ Step step(State s, Action action, const Key& key, const Params& p) {
    const int paddle_x = action == LEFT ? max(s.paddle_x - 1, 0) : action == RIGHT ? min(s.paddle_x + 1, LAST) : s.paddle_x;
    int direction = s.direction;
    int x = s.ball_x + (direction == UP_RIGHT || direction == DOWN_RIGHT ? 1 : -1);
    int y = s.ball_y + (direction >= DOWN_RIGHT ? 1 : -1);
    if (x < 0 || x > LAST) {
        x = min(max(x, 0), LAST);
        direction = mirror_x(direction);
    }
    const bool hits_ceiling = y < 0;
    if (hits_ceiling) {
        y = 0;
        direction = mirror_y(direction);
    }

    float reward = 0.0f;
    bool terminated = false;
    const bool meets_brick = !hits_ceiling && s.bricks[y][x];
    if (meets_brick && !s.in_brick) {
        reward = 1.0f;
        s.bricks[y][x] = false;
        y = s.ball_y;
        direction = mirror_y(direction);
    }
    if (!meets_brick && y == LAST) {
        if (!any_brick(s)) build_wall(s, p);
        if (s.ball_x == paddle_x || x == paddle_x) {
            y = s.ball_y;
            direction = s.ball_x == paddle_x ? mirror_y(direction) : reverse(direction);
        } else {
            terminated = true;
        }
    }
    return {{y, x, direction, paddle_x, s.ball_y, s.ball_x, meets_brick, s.bricks}, reward, terminated};
}

__device__ Ints<4> observe(int row, int column, const State& s, const Params& p) {
    const bool is_paddle = row == LAST && column == s.paddle_x;
    const bool is_ball = row == s.ball_y && column == s.ball_x;
    const bool is_trail = row == s.last_y && column == s.last_x;
    return {is_paddle, is_ball, is_trail, s.bricks[row][column]};
}
