use zonos_audio::{ResampleRecipe, Resampler};

use crate::golden::{Golden, distance, json};

/// Two f32 sums of the same products in different orders differ by about 2e-7.
const SAMPLES: f32 = 1e-6;

fn pairs() -> Vec<(String, u32, u32)> {
    let report = json("resample");
    let pairs = report["pairs"].as_object().unwrap();
    assert!(pairs.len() >= 9);
    pairs
        .keys()
        .map(|name| {
            let (from, to) = name.split_once('-').unwrap();
            (name.clone(), from.parse().unwrap(), to.parse().unwrap())
        })
        .collect()
}

#[test]
fn both_recipes_and_short_signals() {
    let golden = Golden::open("resample");
    for (name, from, to) in pairs() {
        let x = golden.values(&format!("{name}.x"));
        let resampler = Resampler::new(from, to, ResampleRecipe::Transform).unwrap();
        let check = |what: &str, actual: &[f32]| {
            let gap = distance(&golden.values(&format!("{name}.{what}")), actual);
            println!("{name}.{what}: {gap:.1e}");
            assert!(gap <= SAMPLES, "{name}.{what}: {gap:e}");
        };
        check("transform", &resampler.resample(&x));
        for n in [1, 2, 7] {
            check(&format!("short{n}"), &resampler.resample(&x[..n]));
        }
        let functional = Resampler::new(from, to, ResampleRecipe::Functional).unwrap();
        check("functional", &functional.resample(&x));
    }
}

#[test]
fn channels_alone() {
    let golden = Golden::open("resample");
    let (shape, x) = golden.tensor("stereo.x");
    let (_, expected) = golden.tensor("stereo.44100-24000");
    let resampler = Resampler::new(44_100, 24_000, ResampleRecipe::Transform).unwrap();
    let actual: Vec<f32> = x
        .chunks(shape[1])
        .flat_map(|channel| resampler.resample(channel))
        .collect();
    assert!(distance(&expected, &actual) <= SAMPLES);
}

#[test]
fn filters_are_those_of_the_reference_bit_for_bit() {
    let golden = Golden::open("resample");
    let (mut checked, report) = (0, json("resample"));
    for (name, from, to) in pairs() {
        let resampler = Resampler::new(from, to, ResampleRecipe::Transform).unwrap();
        let kernel = resampler.kernel().unwrap();
        let facts = &report["pairs"][&name];
        assert_eq!(facts["orig"], kernel.orig_rate(), "{name}");
        assert_eq!(facts["new"], kernel.new_rate(), "{name}");
        assert_eq!(facts["width"], kernel.width(), "{name}");
        let key = format!("{name}.kernel");
        if !golden.has(&key) {
            continue;
        }
        let (shape, expected) = golden.tensor(&key);
        let row = 2 * kernel.width() + kernel.orig_rate();
        assert_eq!(shape, [kernel.new_rate(), row], "{name}");
        for (i, (e, a)) in expected.iter().zip(kernel.dense().unwrap()).enumerate() {
            // Equal numbers: a zero may have either sign.
            assert!(
                *e == a,
                "{name}: phase {}, tap {}: {e:e}, {a:e}",
                i / row,
                i % row
            );
        }
        checked += 1;
    }
    assert_eq!(
        checked,
        golden
            .names()
            .iter()
            .filter(|n| n.ends_with(".kernel"))
            .count()
    );
}

#[test]
fn lengths_lose_their_remainder_where_the_reference_does() {
    let report = json("resample");
    let mut shorter = 0;
    for row in report["lengths"].as_array().unwrap() {
        let [from, to, len, expected, ceiling] = [0, 1, 2, 3, 4].map(|i| row[i].as_u64().unwrap());
        let resampler = Resampler::new(from as u32, to as u32, ResampleRecipe::Transform).unwrap();
        assert_eq!(resampler.output_len(len as usize) as u64, expected, "{row}");
        shorter += u64::from(expected < ceiling);
    }
    assert!(shorter > 10);
}
