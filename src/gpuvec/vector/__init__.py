"""The faces of an environment: Gymnasium's VectorEnv, its scalar Env, and wrappers that stay on the device."""
