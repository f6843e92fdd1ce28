// The intervals of fedre_privacy/eval/intervals.py, for means over targets that come in clients: CR2
// variance, Satterthwaite's degrees of freedom, Student's quantile. A test compares the two.
const intervals = (function () {
  const ROUNDING = 1e-9;

  function lnGamma(x) {
    if (x >= 12) { // Stirling's series; x > 0
      const y = 1 / (x * x);
      const series = (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y / 1188)))) / x;
      return (x - 0.5) * Math.log(x) - x + 0.9189385332046727 + series;
    }
    return lnGamma(x + 1) - Math.log(x);
  }

  // The regularised incomplete beta function by its continued fraction (modified Lentz).
  function beta(a, b, x) {
    if (x <= 0) { return 0; }
    if (x >= 1) { return 1; }
    if (x > (a + 1) / (a + b + 2)) { return 1 - beta(b, a, 1 - x); }
    const front = Math.exp(lnGamma(a + b) - lnGamma(a) - lnGamma(b)
      + a * Math.log(x) + b * Math.log1p(-x)) / a;
    const tiny = 1e-300;
    let c = 1;
    let d = 1 / (Math.abs(1 - (a + b) * x / (a + 1)) < tiny ? tiny : 1 - (a + b) * x / (a + 1));
    let h = d;
    for (let m = 1; m <= 100000; m += 1) {
      for (const step of [
        m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
        -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
      ]) {
        d = 1 + step * d;
        d = 1 / (Math.abs(d) < tiny ? tiny : d);
        c = 1 + step / c;
        c = Math.abs(c) < tiny ? tiny : c;
        h *= d * c;
      }
      if (Math.abs(d * c - 1) < 1e-15) { break; }
    }
    return front * h;
  }

  function bisect(low, high, above) {
    for (let i = 0; i < 200 && high - low > 1e-15 * Math.max(1, Math.abs(high)); i += 1) {
      const middle = (low + high) / 2;
      if (above(middle)) { high = middle; } else { low = middle; }
    }
    return (low + high) / 2;
  }

  function student(p, freedom) { // the quantile of p > 1/2
    const v = Math.min(freedom, 1e9);
    const below = (t) => 1 - 0.5 * beta(v / 2, 0.5, v / (v + t * t)) >= p;
    let high = 2;
    while (!below(high) && high < 1e300) { high *= 2; }
    return bisect(0, high, below);
  }

  function binomial(share, trials, miss) { // Clopper and Pearson
    const found = share * trials;
    const lost = trials - found;
    return [
      found <= 1e-9 ? 0 : bisect(0, 1, (x) => beta(found, lost + 1, x) >= miss / 2),
      lost <= 1e-9 ? 1 : bisect(0, 1, (x) => beta(found + 1, lost, x) >= 1 - miss / 2),
    ];
  }

  function by(values, clusters) {
    const sums = new Map();
    values.forEach((value, i) => {
      const own = sums.get(clusters[i]) || [0, 0];
      sums.set(clusters[i], [own[0] + value, own[1] + 1]);
    });
    const units = sums.size;
    let whole = 0; // a client of n targets weighs n / (n + 1)
    sums.forEach(([, count]) => { whole += count / (count + 1); });
    const weight = (count) => count / (count + 1) / whole;
    let mean = 0;
    let s = 0;
    sums.forEach(([sum, count]) => {
      mean += weight(count) * sum / count;
      s += weight(count) ** 2;
    });
    let variance = 0;
    let total = 0, abb = 0, ab = 0, own = 0;
    sums.forEach(([sum, count]) => {
      const w = weight(count);
      const spread = 1 - 2 * w + s;
      const a = w * w / spread;
      const b = s / 2 - w;
      variance += a * (sum / count - mean) ** 2;
      total += a;
      abb += a * b * b;
      ab += a * b;
      own += a * a * (spread ** 2 - (2 * b) ** 2);
    });
    const square = 2 * total * abb + 2 * ab ** 2 + own;
    return { mean, units, error: Math.sqrt(variance), freedom: s * s / square };
  }

  // The mean of values with the two-sided 95 % interval of that over clients; bounds: least and
  // greatest value.
  function clustered(values, clusters, bounds) {
    if (values.length === 0) { return { mean: NaN, low: NaN, high: NaN, n: 0, units: 0 }; }
    let found = by(values, clusters);
    if (found.units === 1) { found = by(values, values.map((_, i) => i)); }
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const out = { mean, n: values.length, units: found.units };
    if (found.units < 2) { return { ...out, low: NaN, high: NaN }; }
    const half = student(0.975, found.freedom) * found.error;
    let [low, high] = [found.mean - half, found.mean + half];
    if (bounds) {
      const width = bounds[1] - bounds[0];
      if (found.error <= ROUNDING * width) {
        const share = Math.min(1, Math.max(0, (found.mean - bounds[0]) / width));
        [low, high] = binomial(share, found.units, 0.05).map((end) => bounds[0] + width * end);
      }
      low = Math.max(low, bounds[0]);
      high = Math.min(high, bounds[1]);
    }
    return { ...out, low, high };
  }

  return { clustered };
})();
