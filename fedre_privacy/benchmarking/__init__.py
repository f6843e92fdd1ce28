"""Many runs and attacks side by side: suites of attacks, sweeps, benchmarks."""
