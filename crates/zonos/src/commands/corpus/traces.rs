//! Which traces a corpus is made of.

use zonos_tts::{Quality, Speaker, SpeakingRate, SpeechRequest, TtsError};
use zonos2::Zonos2Config;

use super::Named;
use crate::commands::tts::refused;
use crate::failure::Failure;

/// Long and short, numbers, names, questions, lists: two for each conditioning without a voice.
const TEXTS: [&str; 8] = [
    "The ferry left the harbour at dawn, and nobody on the quay noticed that the lamp was still burning.",
    "Would you mind closing the window? The rain is coming in.",
    "In 1969 about six hundred million people watched the same grey picture, and most of them stayed up for it.",
    "Bring flour, two eggs, a pinch of salt, and whatever is left of the butter.",
    "No, no, no. That is not what I said at all!",
    "The committee will meet again on Thursday, the fourteenth of March, at a quarter past nine.",
    "She had learned the names of all the birds in the valley, and spoke of them as one speaks of neighbours.",
    "Thank you. Goodbye.",
];

/// Seed of the first trace without a voice.
const PLAIN_SEED: u64 = 1000;

/// Seed of the first trace with one.
const VOICE_SEED: u64 = 2000;

/// The speaking rates that are asked for, where the model has so many.
const SLOW: usize = 1;
const FAST: usize = 6;

/// One sequence to be spoken.
pub(super) struct Trace {
    pub(super) request: SpeechRequest,
    /// What the request conditions on.
    pub(super) setting: &'static str,
    /// The voice, by its number.
    pub(super) voice: Option<usize>,
    pub(super) seed: u64,
}

/// A way to condition.
struct Setting {
    name: &'static str,
    apply: fn(&mut SpeechRequest),
}

fn rate(request: &mut SpeechRequest, bucket: usize) {
    request.speaking_rate = Some(SpeakingRate::Bucket(bucket));
}

fn plain(config: &Zonos2Config) -> Vec<Setting> {
    let mut settings = vec![Setting {
        name: "default",
        apply: |_| {},
    }];
    let rates = config.speaking_rate_num_buckets;
    if rates > SLOW {
        settings.push(Setting {
            name: "slow",
            apply: |request| rate(request, SLOW),
        });
    }
    if rates > FAST {
        settings.push(Setting {
            name: "fast",
            apply: |request| rate(request, FAST),
        });
    }
    if config.quality_counts().next().is_some_and(|n| n > 0) {
        settings.push(Setting {
            name: "low quality",
            apply: |request| request.quality = Quality::BucketList(vec![Some(0)]),
        });
    }
    settings
}

fn voiced(config: &Zonos2Config) -> Vec<Setting> {
    let mut settings = vec![
        Setting {
            name: "default",
            apply: |request| request.clean_background = true,
        },
        Setting {
            name: "expressive",
            apply: |request| {
                request.clean_background = true;
                request.accurate = false;
            },
        },
        Setting {
            name: "noisy",
            apply: |_| {},
        },
    ];
    if config.speaking_rate_num_buckets > FAST {
        settings.push(Setting {
            name: "fast",
            apply: |request| {
                request.clean_background = true;
                rate(request, FAST);
            },
        });
    }
    settings
}

/// Text `i` of those given, or of ours, from the first again after the last.
pub(super) fn text_of(texts: Option<&[String]>, i: usize) -> &str {
    match texts {
        Some(texts) => &texts[i % texts.len()],
        None => TEXTS[i % TEXTS.len()],
    }
}

/// All traces: two texts for each setting without a voice, then one for each setting of each voice.
pub(super) fn plan(
    config: &Zonos2Config,
    texts: Option<&[String]>,
    voices: &[Named],
    seed: u64,
) -> Result<Vec<Trace>, Failure> {
    let text = |i: usize| text_of(texts, i);
    let mut traces = Vec::new();
    let mut add = |setting: &Setting, text: &str, voice: Option<usize>, first: u64, nth: usize| {
        let mut request = SpeechRequest::new(text);
        (setting.apply)(&mut request);
        request.voice = voice.map(|v| Speaker {
            position: 0,
            ..voices[v].voice.speaker()
        });
        request.check().map_err(|error| blank(error, text))?;
        traces.push(Trace {
            request,
            setting: setting.name,
            voice,
            seed: seed.wrapping_add(first + nth as u64),
        });
        Ok::<(), Failure>(())
    };
    for (i, setting) in plain(config).iter().enumerate() {
        for nth in [2 * i, 2 * i + 1] {
            add(setting, text(nth), None, PLAIN_SEED, nth)?;
        }
    }
    let settings = voiced(config);
    for voice in 0..voices.len() {
        for (i, setting) in settings.iter().enumerate() {
            let nth = voice * settings.len() + i;
            add(setting, text(nth), Some(voice), VOICE_SEED, nth)?;
        }
    }
    Ok(traces)
}

fn blank(error: TtsError, text: &str) -> Failure {
    match refused(error) {
        Failure::Usage(message) => Failure::Usage(format!("--texts, '{text}': {message}")),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonos_tts::{Provenance, Voice};

    #[test]
    fn eight_traces_and_four_a_voice() {
        let config = Zonos2Config::released();
        let voices: Vec<Named> = ["a", "b"]
            .map(|name| Named {
                name: name.into(),
                voice: Voice::new(vec![0.5; 2048], Provenance::now()).unwrap(),
            })
            .into();
        let traces = plan(&config, None, &voices, 5).ok().unwrap();
        let seeds: Vec<u64> = traces.iter().map(|t| t.seed).collect();
        assert_eq!(
            seeds,
            [1005..1013, 2005..2013]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        );
        let texts: std::collections::BTreeSet<_> =
            traces[..8].iter().map(|t| t.request.text.clone()).collect();
        assert_eq!(texts.len(), 8);
        assert_eq!(traces[15].voice, Some(1));
        for trace in &traces {
            let prompt = trace.request.prompt(&config).unwrap();
            assert_eq!(prompt.speaker_position(), trace.voice.map(|_| 0));
        }
        // A model without conditioning speaks as it is.
        let bare = Zonos2Config::from_json(&serde_json::json!({ "text_vocab": 448 })).unwrap();
        let traces = plan(&bare, Some(&["Hello.".into()]), &[], 0).ok().unwrap();
        assert_eq!(traces.len(), 2);
        assert!(plan(&bare, Some(&["\u{200b}".into()]), &[], 0).is_err());
    }
}
