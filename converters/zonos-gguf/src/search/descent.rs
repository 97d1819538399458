//! x ~ s l with l in [-4, 3] by coordinate descent, weights x^2 (Q3_K without importance).

use pulp::Simd;

use super::{Each, Lanes, MOST, Vector, all, gather, peaks, put, take, width};
use crate::numeric::{ZERO_GROUP, nearest};

const TOP: f32 = 4.0;

/// Most sweeps over the values of a group. The first one is made of all groups, a group in each lane. It
/// changes something in one group of five, and the next one in a quarter of these: they go on one by
/// one, a value in each lane.
const SWEEPS: usize = 5;

/// Registers that take turns: each step waits for a division, more than for a sum.
const TURNS: usize = 4;

/// What a search found.
pub(crate) struct Descent<const N: usize> {
    /// The scales; 0 for a group of zeros.
    pub(crate) scale: Each,
    /// Codes in [-4, 3], `[value][group]`; -4 in a group of zeros.
    codes: [Each; N],
}

impl<const N: usize> Descent<N> {
    /// Room for what is found.
    pub(crate) fn new() -> Self {
        Self {
            scale: [0.0; MOST],
            codes: [[0.0; MOST]; N],
        }
    }

    /// The codes of group `g`, 4 added; 0 for a group of zeros.
    #[inline]
    pub(crate) fn codes(&self, g: usize) -> [u8; N] {
        self.own(g).map(|q| (q + TOP) as u8)
    }

    #[inline(always)]
    fn own(&self, g: usize) -> [f32; N] {
        let mut out = [0.0; N];
        for i in 0..N {
            out[i] = self.codes[i][g];
        }
        out
    }

    /// Finds scales and codes of each group of `N` values in `x`, at most [`MOST`]. What was found before
    /// is gone.
    #[inline(always)]
    pub(crate) fn search<S: Simd>(&mut self, simd: S, x: &[f32]) {
        let at_once = width::<S, TURNS>();
        for (part, x) in x.chunks(at_once * N).enumerate() {
            search(simd, x, part * at_once, self);
        }
    }
}

/// Groups from `first` on.
#[inline(always)]
fn search<S: Simd, const N: usize>(simd: S, groups: &[f32], first: usize, out: &mut Descent<N>) {
    let x = gather::<S, N, TURNS>(simd, groups);
    let of = |v: f32| Vector::splat(simd, v);
    let (low, high, zero, one) = (of(-TOP), of(TOP - 1.0), of(0.0), of(1.0));
    let (largest, peak) = peaks(simd, &x);
    let mut none = [zero.above(zero); TURNS];
    let mut inverse = peak;
    for h in 0..TURNS {
        none[h] = largest[h].below(of(ZERO_GROUP));
        inverse[h] = low / none[h].pick(one, peak[h]);
    }
    let [mut a, mut b]: [Lanes<S, TURNS>; 2] = [all(simd, 0.0); 2];
    for i in 0..N {
        let mut q: Lanes<S, TURNS> = all(simd, 0.0);
        for h in 0..TURNS {
            let v = Vector::new(simd, x[i][h]);
            let w = v * v;
            q[h] = (inverse[h] * v).nearest_within(low, high);
            a[h] = a[h] + w * v * q[h];
            b[h] = b[h] + w * q[h] * q[h];
        }
        put(&q, first, &mut out.codes[i]);
    }
    let mut moved = [zero.above(zero); TURNS];
    for i in 0..N {
        let mut q: Lanes<S, TURNS> = take(simd, &out.codes[i], first);
        for h in 0..TURNS {
            let step = Step::of(Vector::new(simd, x[i][h]), q[h], a[h], b[h]);
            let take = step.value.above(step.now);
            q[h] = take.pick(step.to, q[h]);
            a[h] = take.pick(step.a, a[h]);
            b[h] = take.pick(step.b, b[h]);
            moved[h] = moved[h].or(take);
        }
        put(&q, first, &mut out.codes[i]);
    }
    let (mut scale, mut changed, mut empty) = (a, a, a);
    for h in 0..TURNS {
        scale[h] = ratio(a[h], b[h]);
        scale[h] = none[h].pick(zero, scale[h]);
        changed[h] = none[h].pick(zero, moved[h].pick(one, zero));
        empty[h] = none[h].pick(one, zero);
    }
    put(&scale, first, &mut out.scale);
    let [mut all_a, mut all_b, mut all_changed, mut all_empty] = [[0.0; MOST]; 4];
    put(&a, first, &mut all_a);
    put(&b, first, &mut all_b);
    put(&changed, first, &mut all_changed);
    put(&empty, first, &mut all_empty);
    // First all questions, then all answers: a branch at each would have to wait for its divisions.
    let groups = groups.as_chunks::<N>().0;
    let (mut list, mut many) = ([0; MOST], 0);
    for g in 0..groups.len() {
        if all_empty[first + g] != 0.0 {
            for codes in &mut out.codes {
                codes[first + g] = -TOP;
            }
        }
        list[many] = g;
        many += usize::from(all_changed[first + g] != 0.0);
    }
    let (mut moves, mut more) = ([(0, 0); MOST], 0);
    for &g in &list[..many] {
        let sums = [all_a[first + g], all_b[first + g]];
        let next = next_move(simd, &groups[g], &out.own(first + g), sums, 0);
        moves[more] = (g, next);
        more += usize::from(next < N);
    }
    for &(g, next) in &moves[..more] {
        let sums = [all_a[first + g], all_b[first + g]];
        go_on(simd, &groups[g], sums, first + g, next, out);
    }
}

/// One value of a group, taken out of the sums A and B and put back with the code that is best then.
struct Step<S: Simd> {
    to: Vector<S>,
    a: Vector<S>,
    b: Vector<S>,
    /// What the step is worth, and what it has to pass: infinity where it must not be taken, which is
    /// cheaper than joining decisions.
    value: Vector<S>,
    now: Vector<S>,
}

impl<S: Simd> Step<S> {
    #[inline(always)]
    fn of(v: Vector<S>, q: Vector<S>, a: Vector<S>, b: Vector<S>) -> Self {
        let of = |number: f32| v.same(number);
        let (low, high, zero, one) = (of(-TOP), of(TOP - 1.0), of(0.0), of(1.0));
        let infinity = of(f32::INFINITY);
        let w = v * v;
        let (less_a, less_b) = (a - w * v * q, b - w * q * q);
        let some = less_a.above(zero);
        let to = (v * less_b / some.pick(less_a, one)).nearest_within(low, high);
        let (more_a, more_b) = (less_a + w * v * to, less_b + w * to * to);
        let now = some.pick(a * a * more_b, infinity);
        let now = to.equals(q).pick(infinity, now);
        Self {
            to,
            a: more_a,
            b: more_b,
            value: more_a * more_a * b,
            now: more_b.above(zero).pick(now, infinity),
        }
    }
}

/// A / B, and 0 where B is not above 0.
#[inline(always)]
fn ratio<S: Simd>(a: Vector<S>, b: Vector<S>) -> Vector<S> {
    let some = b.above(b.same(0.0));
    some.pick(a / some.pick(b, b.same(1.0)), b.same(0.0))
}

/// The sweeps after the first one of group `g`, whose sums are `a` and `b` and whose value `next` moves
/// first.
#[inline(always)]
fn go_on<S: Simd, const N: usize>(
    simd: S,
    x: &[f32; N],
    [mut a, mut b]: [f32; 2],
    g: usize,
    mut next: usize,
    out: &mut Descent<N>,
) {
    let mut codes = out.own(g);
    for _ in 1..SWEEPS {
        let mut moved = false;
        while next < N {
            let (v, q) = (x[next], codes[next]);
            let w = v * v;
            let (less_a, less_b) = (a - w * v * q, b - w * q * q);
            let to = (nearest(v * less_b / less_a) as f32).clamp(-TOP, TOP - 1.0);
            (a, b) = (less_a + w * v * to, less_b + w * to * to);
            codes[next] = to;
            moved = true;
            next = next_move(simd, x, &codes, [a, b], next + 1);
        }
        if !moved {
            break;
        }
        next = next_move(simd, x, &codes, [a, b], 0);
    }
    for i in 0..N {
        out.codes[i][g] = codes[i];
    }
    out.scale[g] = if b > 0.0 { a / b } else { 0.0 };
}

/// The first value of the group, at `from` or behind, that is better off with another code, or `N`. Values
/// that stay leave the sums alone, so all can be asked at once.
#[inline(always)]
fn next_move<S: Simd, const N: usize>(
    simd: S,
    x: &[f32; N],
    codes: &[f32; N],
    [a, b]: [f32; 2],
    from: usize,
) -> usize {
    let of = |v: f32| Vector::splat(simd, v);
    let (a, b, infinity) = (of(a), of(b), of(f32::INFINITY));
    let (x, codes) = (S::as_simd_f32s(x).0, S::as_simd_f32s(codes).0);
    let places = S::as_simd_f32s(&PLACES).0;
    let mut next = of(N as f32);
    for ((v, q), places) in x.iter().zip(codes).zip(places) {
        let step = Step::of(Vector::new(simd, *v), Vector::new(simd, *q), a, b);
        let places = Vector::new(simd, *places);
        let before = places.below(of(from as f32));
        let take = step.value.above(before.pick(infinity, step.now));
        next = take.pick(places.smaller(next), next);
    }
    next.smallest() as usize
}

/// The places of values in a group, of 64 at most.
const PLACES: [f32; 64] = {
    let mut out = [0.0; 64];
    let mut i = 0;
    while i < 64 {
        out[i] = i as f32;
        i += 1;
    }
    out
};
