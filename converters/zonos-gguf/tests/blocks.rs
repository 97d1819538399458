//! Every block format against the bytes and floats of ggml, and against anything else.

mod common;

use common::{Golden, Numbers, bytes, fixture, goldens};
use proptest::prelude::*;
use zonos_gguf::GgmlType;
use zonos_gguf::blocks::{dequantize_row, quantize_row};

const LONG: usize = 512;

fn quantized(t: GgmlType, x: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut out = vec![0; t.bytes_for(x.len() as u64).expect("whole blocks") as usize];
    quantize_row(t, x, importance, &mut out).unwrap();
    out
}

fn dequantized(t: GgmlType, raw: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; raw.len() / t.block_bytes() * t.block_values()];
    dequantize_row(t, raw, &mut out).unwrap();
    out
}

/// Equal bits, any NaN equal to any NaN.
fn same(a: &[f32], b: &[f32]) -> bool {
    let one = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    a.len() == b.len() && a.iter().zip(b).all(one)
}

struct Row {
    name: String,
    exact: bool,
}

fn rows(json: &serde_json::Value) -> Vec<Row> {
    let row = |r: &serde_json::Value| Row {
        name: r["name"].as_str().unwrap().into(),
        exact: r["exact"].as_bool().unwrap(),
    };
    json.as_array().unwrap().iter().map(row).collect()
}

/// Which rows of `expected` come out otherwise.
fn differing(
    t: GgmlType,
    x: &[Vec<f32>],
    importance: Option<&[f32]>,
    expected: &[Vec<u8>],
    rows: &[Row],
) -> Vec<String> {
    assert_eq!((x.len(), expected.len()), (rows.len(), rows.len()));
    let mut out = Vec::new();
    for ((x, expected), row) in x.iter().zip(expected).zip(rows) {
        let got = quantized(t, x, importance);
        assert_eq!(got.len(), expected.len());
        if row.exact && got != *expected {
            let at = got.iter().zip(expected).position(|(a, b)| a != b);
            out.push(format!("{t}: row {} differs from byte {at:?} on", row.name));
        }
    }
    out
}

fn stored() -> impl Iterator<Item = GgmlType> {
    GgmlType::READABLE
        .into_iter()
        .filter(|&t| t != GgmlType::F32)
}

#[test]
fn quantised_rows_are_those_of_ggml() {
    let golden = Golden::open(fixture("blocks.safetensors"));
    let rows = rows(&serde_json::from_slice(&bytes(fixture("rows.json"))).unwrap());
    let (x, importance) = (golden.floats("x").unwrap(), golden.vector("imatrix"));
    let mut wrong = Vec::new();
    for t in stored() {
        let plain = golden.rows(&format!("{t}.q")).unwrap();
        wrong.extend(differing(t, &x, None, &plain, &rows));
        let weighted = golden.rows(&format!("{t}.q_im"));
        assert_eq!(weighted.is_some(), t.uses_importance(), "{t}");
        // A type that ignores importances makes the same bytes with them.
        let weighted = weighted.unwrap_or(plain);
        wrong.extend(differing(t, &x, Some(&importance), &weighted, &rows));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn random_blocks_have_the_values_of_ggml() {
    let golden = Golden::open(fixture("blocks.safetensors"));
    for t in stored() {
        let raw = golden.rows(&format!("{t}.rand")).unwrap();
        let values = golden.floats(&format!("{t}.rand_deq")).unwrap();
        for (raw, values) in raw.iter().zip(&values) {
            assert!(same(&dequantized(t, raw), values), "{t}");
        }
    }
}

/// Importances that leave groups next to no weight: scales below zero, as ggml stores them.
#[test]
fn scales_below_zero_are_stored_as_ggml_does() {
    let golden = Golden::open(fixture("sparse.safetensors"));
    let (x, importance) = (golden.floats("x").unwrap(), golden.vector("imatrix"));
    for t in [GgmlType::Q2K, GgmlType::Q4K, GgmlType::Q5K] {
        for (i, (x, q)) in x
            .iter()
            .zip(golden.rows(&format!("{t}.q_im")).unwrap())
            .enumerate()
        {
            assert!(quantized(t, x, Some(&importance)) == q, "{t}: row {i}");
        }
    }
}

#[test]
fn the_full_golden_set() {
    let Some(folder) = goldens("blocks") else {
        return;
    };
    let inputs = Golden::open(folder.join("inputs.safetensors"));
    let (x, importance) = (inputs.floats("x").unwrap(), inputs.vector("imatrix"));
    let report: serde_json::Value =
        serde_json::from_slice(&bytes(folder.join("report.json"))).unwrap();
    let rows = rows(&report["rows"]);
    let mut wrong = Vec::new();
    for t in stored() {
        let golden = Golden::open(folder.join(format!("{t}.safetensors")));
        for (q, deq, importance) in [
            ("q", "deq", None),
            ("q_im", "deq_im", Some(&importance[..])),
            ("rand", "rand_deq", None),
        ] {
            let Some(raw) = golden.rows(q) else {
                assert!(q == "q_im" && !t.uses_importance(), "{t}.{q}");
                continue;
            };
            for (raw, values) in raw.iter().zip(&golden.floats(deq).unwrap()) {
                if !same(&dequantized(t, raw), values) {
                    wrong.push(format!("{t}: {deq}"));
                }
            }
            if q != "rand" {
                wrong.extend(differing(t, &x, importance, &raw, &rows));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lengths_that_do_not_belong_together_are_refused() {
    for t in GgmlType::ALL.iter().copied() {
        let (values, size) = (2 * t.block_values(), 2 * t.block_bytes());
        let mut x = vec![0.0f32; values];
        let mut raw = vec![0u8; size];
        assert_eq!(
            dequantize_row(t, &raw, &mut x).is_ok(),
            t.is_readable(),
            "{t}"
        );
        assert_eq!(
            quantize_row(t, &x, None, &mut raw).is_ok(),
            t.is_readable(),
            "{t}"
        );
        assert!(dequantize_row(t, &raw[1..], &mut x).is_err());
        assert!(quantize_row(t, &x, None, &mut raw[1..]).is_err());
        assert!(quantize_row(t, &x, Some(&x[1..]), &mut raw).is_err());
        if t.is_quantized() {
            assert!(dequantize_row(t, &raw, &mut x[1..]).is_err());
        }
        assert_eq!(dequantize_row(t, &[], &mut []).is_ok(), t.is_readable());
    }
}

/// Blocks of a row do not look at each other, unless importances are weighed by the row's mean square.
#[test]
fn a_row_is_its_blocks_one_by_one() {
    let mut numbers = Numbers(1);
    for t in stored() {
        let n = t.block_values().max(32);
        let x = numbers.normals(5 * n, 0.1);
        let w: Vec<f32> = numbers.normals(5 * n, 1.0).iter().map(|v| v * v).collect();
        let together = quantized(t, &x, None);
        let apart: Vec<u8> = x.chunks(n).flat_map(|x| quantized(t, x, None)).collect();
        assert!(together == apart, "{t}");
        use GgmlType::{Q4_0, Q4_1, Q5_0, Q5_1};
        if !matches!(t, Q4_0 | Q4_1 | Q5_0 | Q5_1) {
            let together = quantized(t, &x, Some(&w));
            let blocks = x.chunks(n).zip(w.chunks(n));
            let apart: Vec<u8> = blocks.flat_map(|(x, w)| quantized(t, x, Some(w))).collect();
            assert!(together == apart, "{t} with importance");
        }
    }
}

/// Sums of squares of small integers are exact in any order, so the blocks of a row can be permuted
/// although importances are weighed by the row's mean square.
#[test]
fn weighted_blocks_of_a_row_keep_their_places() {
    let mut numbers = Numbers(2);
    for t in stored().filter(|t| t.block_values() == 32) {
        let x: Vec<f32> = numbers
            .normals(11 * 32, 6.0)
            .iter()
            .map(|v| v.round())
            .collect();
        let w: Vec<f32> = numbers
            .normals(11 * 32, 1.0)
            .iter()
            .map(|v| v * v)
            .collect();
        let back = |v: &[f32]| -> Vec<f32> { v.chunks(32).rev().flatten().copied().collect() };
        let forwards = quantized(t, &x, Some(&w));
        let backwards = quantized(t, &back(&x), Some(&back(&w)));
        let blocks = backwards.chunks(t.block_bytes()).rev();
        assert!(blocks.flatten().eq(&forwards), "{t}");
    }
}

/// Relative root mean square error of normal values. ggml's own are up to one percent larger or
/// smaller, since the draw differs.
#[test]
fn errors_are_as_small_as_the_format_allows() {
    let x = Numbers(3).normals(64 * LONG, 0.02);
    let power: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
    for (t, most) in [
        (GgmlType::F16, 3e-4),
        (GgmlType::Bf16, 2e-3),
        (GgmlType::Q8_0, 0.006),
        (GgmlType::Q6K, 0.022),
        (GgmlType::Q5_1, 0.04),
        (GgmlType::Q5K, 0.04),
        (GgmlType::Q5_0, 0.045),
        (GgmlType::Q4K, 0.08),
        (GgmlType::Q4_1, 0.08),
        (GgmlType::Iq4Xs, 0.08),
        (GgmlType::Iq4Nl, 0.08),
        (GgmlType::Q4_0, 0.095),
        (GgmlType::Q3K, 0.16),
        (GgmlType::Q2K, 0.32),
    ] {
        let y = dequantized(t, &quantized(t, &x, None));
        let error: f64 = x
            .iter()
            .zip(&y)
            .map(|(a, b)| f64::from(a - b).powi(2))
            .sum();
        let error = (error / power).sqrt();
        assert!(error < most, "{t}: {error}");
    }
}

fn any_type() -> impl Strategy<Value = GgmlType> {
    proptest::sample::select(GgmlType::READABLE.to_vec())
}

/// Floats of every kind: any bits, and values of one magnitude.
fn any_row() -> impl Strategy<Value = Vec<f32>> {
    let bits = proptest::collection::vec(any::<u32>().prop_map(f32::from_bits), LONG);
    let mild = (-45i32..38, proptest::collection::vec(-1.0f32..1.0, LONG))
        .prop_map(|(e, row)| row.iter().map(|v| v * 10f32.powi(e)).collect::<Vec<_>>());
    let few = proptest::collection::vec(
        proptest::sample::select(vec![
            0.0f32,
            -0.0,
            1.0,
            -1.0,
            1e30,
            1e-30,
            f32::NAN,
            f32::INFINITY,
        ]),
        LONG,
    );
    prop_oneof![bits, mild, few]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_decoding_panic(t in any_type(), seed in any::<u64>()) {
        let mut numbers = Numbers(seed);
        let size = t.bytes_for(LONG as u64).unwrap() as usize;
        let raw: Vec<u8> = (0..size).map(|_| numbers.bits() as u8).collect();
        prop_assert_eq!(dequantized(t, &raw).len(), LONG);
    }

    #[test]
    fn no_row_makes_encoding_panic(t in any_type(), x in any_row(), w in any_row(), weigh in any::<bool>()) {
        let raw = quantized(t, &x, weigh.then_some(&w[..]));
        prop_assert_eq!(dequantized(t, &raw).len(), LONG);
    }

    /// Plain numbers survive; blocks come back inside the range of their values, a step aside.
    #[test]
    fn what_comes_back_is_near(t in any_type(), e in -3i32..4, row in proptest::collection::vec(-1.0f32..1.0, LONG)) {
        let x: Vec<f32> = row.iter().map(|v| v * 10f32.powi(e)).collect();
        let y = dequantized(t, &quantized(t, &x, None));
        if t == GgmlType::F32 {
            prop_assert_eq!(&x, &y);
        }
        let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        // Two bits leave steps of a third of the range, which is twice the largest value.
        let most = largest * if t == GgmlType::Q2K { 0.9 } else { 0.5 };
        for (a, b) in x.iter().zip(&y) {
            prop_assert!((a - b).abs() <= most, "{t}: {a} came back as {b}");
        }
    }
}
