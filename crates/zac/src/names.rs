//! Names: the model's own, those of files, and what lies between.

use std::collections::BTreeMap;
use std::path::Path;

use zonos_checkpoint::{Checkpoint, NameMap};

use crate::{ZacConfig, ZacError};

/// Spellings of parts of names: the model's own and another, as related code writes them.
const ALIASES: [(&str, &str); 6] = [
    ("self_attn.in_proj.", "self_attn.in_projs.0."),
    ("self_attn.in_proj.weight", "self_attn.in_proj_weight"),
    ("self_attn.out_proj.", "self_attn.out_projs.0."),
    ("ffn.0.", "linear1."),
    ("ffn.2.", "linear2."),
    ("dwconv.", "dwconv.conv."),
];

/// In front of the names of the teacher's tensors.
pub(crate) const TEACHER: &str = "teacher.";

/// Largest map file that is read.
const MAX_MAP: u64 = 16 << 20;

/// A user's table of names, `{our name: file name}`, for files whose names this build does not know.
/// Those of an encoder's teacher begin with `teacher.`.
///
/// ```
/// # use zonos_zac::NameOverrides;
/// let map = NameOverrides::from_toml(r#""codec.head.norm.weight" = "vocoder.final_norm.weight""#)?;
/// assert_eq!(map.len(), 1);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameOverrides(BTreeMap<String, String>);

impl NameOverrides {
    /// Reads a map file, TOML (`*.toml`) or JSON (`*.json`): a flat table.
    ///
    /// # Errors
    ///
    /// [`ZacError::Map`] names the file and what is wrong.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ZacError> {
        let path = path.as_ref();
        let wrong = |problem: String| ZacError::Map {
            file: path.display().to_string(),
            problem,
        };
        let meta = std::fs::metadata(path).map_err(|e| wrong(e.to_string()))?;
        if !meta.is_file() || meta.len() > MAX_MAP {
            return Err(wrong(
                "a map file is a regular file of at most 16 MiB".to_owned(),
            ));
        }
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        let parse = match ending.to_ascii_lowercase().as_str() {
            "toml" => Self::from_toml,
            "json" => Self::from_json,
            _ => return Err(wrong("a map file ends in .toml or .json".to_owned())),
        };
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        let table = parse(text.trim_start_matches('\u{feff}')).map_err(|problem| {
            wrong(format!(
                "expected a flat table, our name = the file's name: {problem}"
            ))
        })?;
        if table.is_empty() {
            return Err(wrong(
                "names nothing; expected a flat table, our name = the file's name, or no map file"
                    .to_owned(),
            ));
        }
        Ok(table)
    }

    /// Parses the TOML form.
    ///
    /// # Errors
    ///
    /// A sentence that says what is wrong.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let table = toml::from_str(text).map_err(|e| one_line(&e))?;
        Self::checked(table)
    }

    /// Parses the JSON form.
    ///
    /// # Errors
    ///
    /// A sentence that says what is wrong.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let table = serde_json::from_str(text).map_err(|e| one_line(&e))?;
        Self::checked(table)
    }

    /// From pairs of our names and the file's.
    ///
    /// # Errors
    ///
    /// A sentence that says what is wrong.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self, String> {
        Self::checked(pairs.into_iter().collect())
    }

    fn checked(table: BTreeMap<String, String>) -> Result<Self, String> {
        let mut seen = BTreeMap::new();
        for (ours, theirs) in &table {
            for name in [ours, theirs] {
                if name.is_empty() || name.contains(['*', '{', '}']) {
                    return Err(format!("'{name}' is no name of a tensor"));
                }
            }
            if let Some(other) = seen.insert(theirs, ours) {
                return Err(format!("'{theirs}' stands for both '{other}' and '{ours}'"));
            }
        }
        Ok(Self(table))
    }

    /// Pairs in the table.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the table has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Our name of the file's `name`, where the table has it.
    pub fn ours(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter();
        pairs
            .find(|(_, theirs)| *theirs == name)
            .map(|(ours, _)| ours.as_str())
    }

    /// Refuses names that the file does not have. `teacher`: of the teacher's tensors, or of all others.
    fn check(&self, checkpoint: &Checkpoint, teacher: bool) -> Result<(), ZacError> {
        let mut pairs = self.0.iter();
        let gone = pairs.find(|(ours, theirs)| {
            ours.starts_with(TEACHER) == teacher && checkpoint.info(theirs).is_none()
        });
        match gone {
            Some((ours, theirs)) => Err(ZacError::MapName {
                file: checkpoint.path().display().to_string(),
                ours: ours.clone(),
                theirs: theirs.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Refuses names of the codec's tensors that the file does not have.
    pub(crate) fn check_codec(&self, checkpoint: &Checkpoint) -> Result<(), ZacError> {
        self.check(checkpoint, false)
    }

    /// Refuses names of the teacher's tensors that the file with the teacher does not have.
    ///
    /// # Errors
    ///
    /// [`ZacError::MapName`].
    pub fn check_teacher(&self, checkpoint: &Checkpoint) -> Result<(), ZacError> {
        self.check(checkpoint, true)
    }

    /// Rules from the file's names to those that [`Teacher`](zonos_w2v_bert::Teacher) knows, in front of
    /// which `teacher.` may be left.
    pub fn teacher_names(&self) -> NameMap {
        name_map(self)
    }
}

fn one_line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Rules from a file's names to the model's own: the user's first, then the aliases.
pub(crate) fn name_map(overrides: &NameOverrides) -> NameMap {
    let mut map = NameMap::new();
    for (ours, theirs) in &overrides.0 {
        map = map.rename(theirs, ours);
    }
    map = map.strip_wrappers();
    for (ours, theirs) in ALIASES {
        let whole = !theirs.ends_with('.');
        let (from, to) = if whole {
            (format!("codec.*.{theirs}"), format!("codec.*.{ours}"))
        } else {
            (format!("codec.*.{theirs}*"), format!("codec.*.{ours}*"))
        };
        map = map.rename(&from, &to);
    }
    // Entries with the projection applied to them, which other containers store instead of both.
    for folded in ["table", "table.weight"] {
        map = map.rename(
            &format!("codec.*.quantizers.{{q}}.{folded}"),
            "codec.*.quantizers.{q}.codebook.weight",
        );
    }
    map
}

/// `name` and the other spellings under which it is looked for.
pub(crate) fn spellings(name: &str, overrides: &NameOverrides) -> Vec<String> {
    let mut all: Vec<String> = overrides.0.get(name).cloned().into_iter().collect();
    all.push(name.to_owned());
    for (ours, theirs) in ALIASES {
        if !name.starts_with(TEACHER) && name.contains(&format!(".{ours}")) {
            all.push(name.replacen(ours, theirs, 1));
        }
    }
    if name.starts_with(TEACHER) {
        return all;
    }
    if let Some(stem) = name.strip_suffix(".weight") {
        all.push(format!("{stem}.weight_g with weight_v"));
        all.push(format!(
            "{stem}.parametrizations.weight.original0 with original1"
        ));
    }
    all
}

/// The file's name of the parameter at `path`, the dotted field path that Burn's
/// [`ModuleVisitor`](burn::module::ModuleVisitor) walks (names of enum variants may be in it or not).
///
/// ```text
/// decoder.0.transformer.layers.1.ffn.linear1.weight   codec.decoder.0.transformer.layers.31.ffn.0.weight
/// quantizer.quantizers.3.codebook                     codec.quantizer.quantizers.3.codebook.weight
/// head.out.0.bias                                     codec.head.out.0.bias
/// ```
pub(crate) fn checkpoint_name(config: &ZacConfig, path: &str) -> Option<String> {
    let mut parts: Vec<String> = path
        .split('.')
        .filter(|part| !part.starts_with(char::is_uppercase))
        .map(str::to_owned)
        .collect();
    let number = |text: &str| text.parse::<usize>().ok();
    // Numbers of layers and blocks are the file's own.
    for i in 1..parts.len() {
        let stack = match (
            parts[0].as_str(),
            parts.get(1).map(String::as_str),
            &*parts[i - 1],
        ) {
            ("decoder" | "encoder", Some(stage), "layers") => {
                match config.stages.get(number(stage)?)? {
                    crate::StageConfig::Transformer(t) => &t.layers,
                    crate::StageConfig::Patch(_) => return None,
                }
            }
            ("head", _, "blocks") => &config.head.as_ref()?.trunk.blocks,
            ("semantic_head", _, "blocks") => &config.semantic_head.blocks,
            ("semantic_encoder", _, "blocks") => &config.encoder.as_ref()?.semantic_encoder.blocks,
            _ => continue,
        };
        let place = number(&parts[i])?;
        parts[i] = stack.get(place)?.to_string();
    }
    let leaf = parts.pop()?;
    let before = parts.last()?.clone();
    match (before.as_str(), leaf.as_str()) {
        // A dense layer's weight is a parameter inside a module of the same name.
        ("weight", "weight") => {}
        ("weight", "g" | "v") => {
            parts.pop();
            parts.push(format!("weight_{leaf}"));
        }
        (_, "codebook") => parts.extend(["codebook".to_owned(), "weight".to_owned()]),
        _ => parts.push(leaf),
    }
    let name = parts
        .iter()
        .map(|part| match part.as_str() {
            "linear1" => "0",
            "linear2" => "2",
            other => other,
        })
        .collect::<Vec<_>>()
        .join(".");
    Some(format!("codec.{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_become_our_names() {
        let map = name_map(&NameOverrides::default());
        for (theirs, ours) in [
            (
                "codec.decoder.0.transformer.layers.3.linear1.weight",
                "codec.decoder.0.transformer.layers.3.ffn.0.weight",
            ),
            (
                "codec.decoder.0.transformer.layers.3.linear2.weight_v",
                "codec.decoder.0.transformer.layers.3.ffn.2.weight_v",
            ),
            (
                "module.codec.encoder.1.transformer.layers.0.self_attn.in_proj_weight",
                "codec.encoder.1.transformer.layers.0.self_attn.in_proj.weight",
            ),
            (
                "codec.decoder.8.transformer.layers.0.self_attn.in_projs.0.weight",
                "codec.decoder.8.transformer.layers.0.self_attn.in_proj.weight",
            ),
            (
                "codec.decoder.8.transformer.layers.0.self_attn.out_projs.0.weight",
                "codec.decoder.8.transformer.layers.0.self_attn.out_proj.weight",
            ),
            (
                "codec.head.trunk.blocks.0.dwconv.conv.bias",
                "codec.head.trunk.blocks.0.dwconv.bias",
            ),
            (
                "teacher.encoder.layers.0.linear1.weight",
                "teacher.encoder.layers.0.linear1.weight",
            ),
        ] {
            assert_eq!(map.renamed(theirs), ours);
            // Our own names stay.
            assert_eq!(map.renamed(ours), ours);
        }
    }

    #[test]
    fn a_users_names_come_first() {
        let text = r#"{"codec.head.out.0.weight": "vocoder.proj.weight"}"#;
        let overrides = NameOverrides::from_json(text).unwrap();
        let map = name_map(&overrides);
        assert_eq!(
            map.renamed("vocoder.proj.weight"),
            "codec.head.out.0.weight"
        );
        let tried = spellings("codec.head.out.0.weight", &overrides);
        assert_eq!(
            &tried[..2],
            ["vocoder.proj.weight", "codec.head.out.0.weight"]
        );
        // The teacher has names of its own: none of the codec's aliases.
        let name = "teacher.encoder.layers.0.ffn.0.weight";
        assert_eq!(spellings(name, &overrides), [name]);
        let tried = spellings(
            "codec.decoder.0.transformer.layers.3.ffn.0.weight",
            &NameOverrides::default(),
        );
        assert!(
            tried.contains(&"codec.decoder.0.transformer.layers.3.linear1.weight".to_owned()),
            "{tried:?}"
        );
    }

    #[test]
    fn map_files_that_are_none() {
        for bad in [
            "[1]",
            "{",
            r#"{"a": 1}"#,
            r#"{"a": ""}"#,
            r#"{"a*": "b"}"#,
            r#"{"a": "c", "b": "c"}"#,
        ] {
            assert!(NameOverrides::from_json(bad).is_err(), "{bad}");
        }
        assert!(NameOverrides::from_toml("a = 1").is_err());
        assert_eq!(NameOverrides::from_toml("a = 'b'").unwrap().len(), 1);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.bin");
        std::fs::write(&path, [200, 201]).unwrap();
        let told = |path: &Path| NameOverrides::from_file(path).unwrap_err().to_string();
        let error = told(&path);
        assert!(
            error.contains("map.bin") && error.contains("ends in .toml or .json"),
            "{error}"
        );
        assert!(told(&folder.path().join("none.json")).starts_with("map file "));
        assert!(NameOverrides::from_file(folder.path()).is_err());
        let path = folder.path().join("list.json");
        std::fs::write(&path, "[]").unwrap();
        let error = told(&path);
        assert!(
            error.starts_with("map file ") && error.contains("our name = the file's name"),
            "{error}"
        );
        let path = folder.path().join("map.json");
        std::fs::write(&path, "\u{feff}{}").unwrap();
        assert!(told(&path).contains("map.json: names nothing"));
        std::fs::write(&path, "\u{feff}{\"a\": \"b\"}").unwrap();
        assert_eq!(NameOverrides::from_file(&path).unwrap().len(), 1);
    }
}
