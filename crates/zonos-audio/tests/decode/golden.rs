//! The files of a reference decoder, whole and broken.

use safetensors::SafeTensors;
use zonos_audio::decode::{DecodeLimits, Decoded, decode_file, probe_file};

use super::{fixture, json};

fn decode(name: &str) -> Decoded {
    decode_file(fixture(name), &DecodeLimits::default()).unwrap()
}

/// The clip that the files were made of, `[channels][frames]`, at the rates that it is kept at.
fn source(file: &SafeTensors<'_>, rate: u64, channels: u64) -> Option<Vec<Vec<f32>>> {
    let view = file.tensor(&format!("speech.{rate}.{channels}")).ok()?;
    let values: Vec<f32> = view
        .data()
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let frames = values.len() / channels as usize;
    Some(values.chunks(frames).map(<[f32]>::to_vec).collect())
}

fn rms(samples: &[f32]) -> f64 {
    let sum: f64 = samples.iter().map(|&x| f64::from(x).powi(2)).sum();
    (sum / samples.len() as f64).sqrt()
}

/// The best correlation of `found` with `wanted` over delays of `found` by up to 2000 frames, and
/// that delay.
fn best_correlation(found: &[f32], wanted: &[f32]) -> (f64, i64) {
    let at = |samples: &[f32], i: i64| {
        let sample = usize::try_from(i).ok().and_then(|i| samples.get(i));
        f64::from(sample.copied().unwrap_or(0.0))
    };
    (-2000..2000)
        .map(|lag| {
            let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
            for i in (0..wanted.len() as i64).step_by(3) {
                let (a, b) = (at(found, i + lag), at(wanted, i));
                ab += a * b;
                aa += a * a;
                bb += b * b;
            }
            (ab / (aa * bb).sqrt(), lag)
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap()
}

/// Files whose clip is kept at their rate.
const COMPARED: usize = 19;

#[test]
fn every_file_as_the_reference_decodes_it() {
    let bytes = std::fs::read(fixture("decode/source.safetensors")).unwrap();
    let clip = SafeTensors::deserialize(&bytes).unwrap();
    let expected = json("decode/expected.json");
    assert_eq!(expected.len(), 26);
    let mut compared = 0;
    for (name, want) in &expected {
        let number = |key: &str| want[key].as_u64().unwrap();
        let real = |key: &str| want[key].as_f64().unwrap();
        let path = format!("decode/{name}");
        let decoded = decode(&path);
        let info = &decoded.info;
        assert_eq!(decoded.warnings, [""; 0], "{name}");
        assert_eq!(u64::from(info.sample_rate), number("rate"), "{name}");
        assert_eq!(info.channels as u64, number("channels"), "{name}");
        assert_eq!(decoded.channels.len(), info.channels, "{name}");
        let frames = decoded.channels[0].len() as u64;
        assert_eq!(info.frames, Some(frames), "{name}");

        let probed = probe_file(fixture(&path)).unwrap();
        assert_eq!(
            (
                probed.container,
                probed.codec,
                probed.sample_rate,
                probed.channels
            ),
            (info.container, info.codec, info.sample_rate, info.channels)
        );
        if probed.frames.is_some() {
            assert_eq!(probed.frames, info.frames, "{name}: the header's length");
        }

        let source = source(&clip, number("rate"), number("channels"));
        // These do not say what to cut; all others have the clip's length to the frame.
        let untrimmed = [
            "mp3_notag_mono_44100.mp3",
            "aac_adts_mono_24000.aac",
            "adpcm_mono_22050.wav",
        ];
        if untrimmed.contains(&name.as_str()) {
            let range = number("samples_min")..=number("samples_max");
            assert!(range.contains(&frames), "{name}: {frames} of {range:?}");
        } else {
            assert_eq!(frames, number("source_samples"), "{name}");
        }
        let lossless = want["lossless"].as_bool().unwrap();
        for (c, channel) in decoded.channels.iter().enumerate() {
            let (found, wanted) = (rms(channel), want["rms"][c].as_f64().unwrap());
            let tolerance = if lossless {
                1e-6
            } else {
                real("rms_tolerance")
            };
            let off = (found / wanted - 1.0).abs();
            assert!(off <= tolerance, "{name}: {found} {wanted}");
        }
        if let Some(first) = want.get("first") {
            for (i, x) in first.as_array().unwrap().iter().enumerate() {
                let found = f64::from(decoded.channels[0][100 + i]);
                assert!((found - x.as_f64().unwrap()).abs() < 1e-7, "{name}");
            }
        }
        let peak = decoded
            .channels
            .iter()
            .flatten()
            .fold(0_f32, |m, x| m.max(x.abs()));
        let tolerance = if lossless { 1e-7 } else { 0.05 };
        assert!(
            (f64::from(peak) - real("peak")).abs() < tolerance,
            "{name}: {peak}"
        );
        let Some(source) = source else { continue };
        compared += 1;
        for (channel, source) in decoded.channels.iter().zip(&source) {
            if lossless {
                let worst = channel
                    .iter()
                    .zip(source)
                    .map(|(a, b)| (a - b).abs())
                    .fold(0.0, f32::max);
                // The clip is stored unrounded; the file holds it rounded to its bits.
                let half_step = match (info.codec, info.bits_per_sample) {
                    ("PCM" | "FLAC", Some(bits)) => 0.5 / f64::from(bits - 1).exp2(),
                    _ => 0.0,
                };
                let allowed = real("max_delta_to_source") + half_step + 5e-8;
                assert!(
                    f64::from(worst) <= allowed,
                    "{name}: {worst:e} > {allowed:e}"
                );
            } else {
                let (correlation, lag) = best_correlation(channel, source);
                let least = real("min_correlation");
                assert!(correlation >= least, "{name}: {correlation} < {least}");
                // Where the reference finds it, as it cuts the same priming; the peak is flat.
                let wanted = want["lag_of_ffmpeg_output"].as_i64().unwrap();
                assert!((lag - wanted).abs() <= 2, "{name}: {lag} {wanted}");
            }
        }
    }
    assert_eq!(compared, COMPARED);
}

#[test]
fn mono_is_the_mean_of_the_channels() {
    let stereo = decode("decode/pcm24_stereo_48000.wav");
    let mono = stereo.to_mono();
    assert_eq!(mono.sample_rate(), 48_000);
    let (left, right) = (&stereo.channels[0], &stereo.channels[1]);
    for (i, x) in mono.samples().iter().enumerate() {
        assert!((x - (left[i] + right[i]) / 2.0).abs() < 1e-7);
    }
    assert_eq!(stereo.clone().into_mono(), mono);
}

/// What the error says, for those that must fail; what the warning says, for those that may not.
const BROKEN: [(&str, &str); 28] = [
    ("empty.wav", "the file is empty"),
    ("text.wav", "plain text"),
    ("random.mp3", "no MPEG frames"),
    ("png_header.mp3", "PNG image"),
    ("truncated.wav", "cut short: 3200 of 8000 samples"),
    ("truncated_mid_sample.wav", "cut short"),
    ("header_only.wav", "contains no samples"),
    ("header_cut.wav", "cut short: the header is incomplete"),
    ("zero_channels.wav", "invalid header: 0 channels"),
    ("zero_rate.wav", "invalid header: sample rate 0"),
    ("absurd_rate.wav", "implausible sample rate 4294967295 Hz"),
    ("absurd_channels.wav", "implausible channel count 65535"),
    ("zero_bits.wav", "unsupported bit depth 0"),
    ("bits17.wav", "incomplete last frame"),
    ("no_fmt.wav", "no format chunk before the samples"),
    ("no_data.wav", "no data chunk"),
    ("huge_data_size.wav", "cut short: 1000 of"),
    (
        "unknown_codec.wav",
        "codec tag 0x1234 in WAV is not supported",
    ),
    ("nan_float.wav", "NaN or infinite samples"),
    ("loud_float.wav", ""),
    ("short10.wav", ""),
    ("silence.wav", ""),
    ("riff_wrong_form.wav", "not WAVE"),
    ("truncated.flac", "cut short"),
    ("truncated.mp3", "cut short"),
    ("truncated.ogg", "cut short"),
    ("truncated.m4a", "cut short: its index is missing"),
    ("video_only.mp4", "no audio track"),
];

#[test]
fn broken_files_end_as_agreed() {
    let expected = json("broken/expected.json");
    assert_eq!(expected.len(), BROKEN.len());
    for (name, says) in BROKEN {
        let want = &expected[name];
        let path = fixture(&format!("broken/{name}"));
        let result = decode_file(&path, &DecodeLimits::default());
        let outcome = want["outcome"].as_str().unwrap();
        match result {
            Ok(decoded) => {
                assert_ne!(outcome, "error", "{name}");
                let frames = decoded.channels[0].len() as u64;
                if let Some(samples) = want.get("samples") {
                    assert_eq!(frames, samples.as_u64().unwrap(), "{name}");
                }
                if let Some(least) = want.get("samples_at_least") {
                    let least = least.as_u64().unwrap();
                    assert!(frames >= least, "{name}: {frames} < {least}");
                }
                let warnings = decoded.warnings.join("; ");
                assert_eq!(warnings.is_empty(), says.is_empty(), "{name}: {warnings}");
                assert!(warnings.contains(says), "{name}: {warnings}");
            }
            Err(error) => {
                assert_ne!(outcome, "accept", "{name}: {error}");
                let text = error.to_string();
                assert!(text.contains(says), "{name}: {text}");
                assert!(text.starts_with(path.to_str().unwrap()), "{text}");
                assert!(!text.contains('\n'), "{text}");
            }
        }
    }
}

#[test]
fn floats_above_one_are_kept() {
    let decoded = decode("broken/loud_float.wav");
    let peak = decoded.channels[0]
        .iter()
        .fold(0_f32, |m, x| m.max(x.abs()));
    assert!(peak > 1.0, "{peak}");
}

/// Every prefix of every small file is read or refused, and never more than the whole.
#[test]
fn files_cut_anywhere() {
    for name in json("decode/expected.json").keys() {
        let path = fixture(&format!("decode/{name}"));
        let whole = std::fs::read(&path).unwrap();
        if whole.len() > 50_000 {
            continue;
        }
        let all = decode(&format!("decode/{name}")).channels[0].len();
        // A prime step: cuts fall on every kind of boundary.
        for end in (0..whole.len()).step_by(whole.len().min(9973) / 37 + 1) {
            if let Ok(decoded) = super::bytes(name, &whole[..end]) {
                let frames = decoded.channels[0].len();
                // A lost length may uncover padding, of less than two packets.
                assert!(frames > 0 && frames <= all + 4096, "{name} cut at {end}");
            }
        }
    }
}
