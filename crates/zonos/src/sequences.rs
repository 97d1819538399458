//! Sequences to evaluate a model on: id files on the command line, or a manifest.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use zonos_gguf::manifest;
use zonos_tts::{Speaker, Voice};
use zonos2::{Sequence, Zonos2Config};

use crate::args::takes_voices;
use crate::failure::Failure;
use crate::reading::text_file;
use crate::{output, rows};

/// A manifest lists files; one beyond this is something else.
const MOST_BYTES: u64 = 64 << 20;

/// The sequences of a manifest, and every file that was read for them.
pub(crate) struct Corpus {
    pub(crate) sequences: Vec<Sequence>,
    files: Vec<PathBuf>,
}

impl Corpus {
    /// Id files without voices.
    pub(crate) fn of_files(files: &[PathBuf], config: &Zonos2Config) -> Result<Self, Failure> {
        let read = |path: &PathBuf| rows::read_rows(path, config, None);
        Ok(Self {
            sequences: files.iter().map(read).collect::<anyhow::Result<_>>()?,
            files: files.to_vec(),
        })
    }

    /// Everything that a manifest lists.
    pub(crate) fn of_manifest(path: &Path, config: &Zonos2Config) -> Result<Self, Failure> {
        let name = path.display();
        let text = text_file(path, MOST_BYTES, "manifest")?;
        // Editors on Windows put a byte order mark before a text.
        let entries = manifest::parse(path, text.trim_start_matches('\u{feff}'))?;
        if entries.is_empty() {
            return Err(Failure::failed(format!("{name}: lists no sequence")));
        }
        let mut corpus = Self {
            sequences: Vec::with_capacity(entries.len()),
            files: vec![path.to_path_buf()],
        };
        // Many sequences share a voice.
        let mut voices: HashMap<PathBuf, Vec<f32>> = HashMap::new();
        for entry in entries {
            let listed = [Some(&entry.ids), entry.speaker.as_ref()];
            if let Some(gone) = listed.into_iter().flatten().find(|file| !file.exists()) {
                let toml = path
                    .extension()
                    .is_some_and(|e| e.eq_ignore_ascii_case("toml"));
                let blanks = if toml {
                    ""
                } else {
                    ", and those with blanks take a .toml manifest"
                };
                return Err(Failure::failed(format!(
                    "{name}: lists {}, and there is no such file; names are relative to the manifest's folder{blanks}",
                    gone.display()
                )));
            }
            let speaker = match &entry.speaker {
                None => None,
                Some(file) => {
                    takes_voices(config)?;
                    let vector = match voices.get(file) {
                        Some(vector) => vector.clone(),
                        None => {
                            let voice = Voice::load(file)?;
                            let shown = file.display().to_string();
                            voice.check(&shown, config.speaker_embedding_dim)?;
                            corpus.files.push(file.clone());
                            voices.insert(file.clone(), voice.vector().to_vec());
                            voice.vector().to_vec()
                        }
                    };
                    let position = entry.position as usize;
                    Some(Speaker { vector, position })
                }
            };
            let sequence = rows::read_rows(&entry.ids, config, speaker)?;
            corpus.sequences.push(sequence);
            corpus.files.push(entry.ids);
        }
        Ok(corpus)
    }

    /// Refuses an output that is one of the files read.
    pub(crate) fn spares(&self, outputs: &[(&str, &Path)]) -> Result<(), Failure> {
        for file in &self.files {
            for output in outputs {
                output::distinct(&[("a file of the corpus", file), *output])?;
            }
        }
        Ok(())
    }
}
