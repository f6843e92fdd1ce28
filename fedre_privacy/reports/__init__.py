"""What results look like: ``report.html`` of attacks and benchmarks, and pictures of runs."""
