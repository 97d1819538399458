//! From the names in a file to the names of a model.

use std::collections::BTreeMap;
use std::path::Path;

use crate::CheckpointError;
use crate::expr::Expr;
use crate::pattern::{Pattern, Template};
use crate::tensor::Entry;

/// An ordered list of rules that turn file names into a model's own names.
///
/// Every rule sees the names as the rules before it left them, and a rule that does not apply to a
/// name leaves it alone: a map that accepts several layouts is just their rules one after another.
/// Patterns are explained at [`NameMap::rename`].
///
/// ```
/// use zonos_checkpoint::NameMap;
///
/// let map = NameMap::new()
///     .strip_prefix("module.")
///     .rename("*.parametrizations.*.original", "*.*")
///     .ignore("*.router.ent_denom*")
///     .interleave("*.experts.{e}.w1.weight", "*.experts.{e}.w3.weight", "*.experts.{e}.w13", 0)
///     .stack("*.experts.{e}.w13", "e", "*.experts.w13");
/// assert!(map.check().is_ok());
/// ```
///
/// The same rules can come from a file, see [`NameMap::from_file`].
#[derive(Debug, Clone, Default)]
pub struct NameMap {
    rules: Vec<Rule>,
    mistakes: Vec<String>,
}

#[derive(Debug, Clone)]
enum Rule {
    StripPrefix(String),
    Rename(Pattern, Template),
    Ignore(Pattern),
    Stack {
        from: Pattern,
        index: String,
        to: Template,
    },
    Concat {
        from: Vec<Pattern>,
        to: Template,
        axis: isize,
    },
    Interleave {
        even: Pattern,
        odd: Pattern,
        to: Template,
        axis: isize,
    },
    InterleaveHalves {
        from: Pattern,
        to: Template,
        axis: isize,
    },
    Split {
        from: Pattern,
        to: Vec<Template>,
        axis: isize,
        sizes: Option<Vec<usize>>,
    },
    Transpose {
        from: Pattern,
        to: Template,
        axes: (isize, isize),
    },
}

impl NameMap {
    /// No rules: names in the file are the model's names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes `prefix` from names that begin with it (`module.`, `_orig_mod.`).
    pub fn strip_prefix(mut self, prefix: &str) -> Self {
        self.rules.push(Rule::StripPrefix(prefix.into()));
        self
    }

    /// Removes what training wrappers put before or into names: `module.` (data parallel),
    /// `_orig_mod.` (compiled modules, whole or part) and `model.` (training frameworks), in any
    /// order, up to three deep. For models none of whose own names begin so.
    pub fn strip_wrappers(mut self) -> Self {
        for _ in 0..3 {
            for prefix in ["module.", "_orig_mod.", "model."] {
                self = self.strip_prefix(prefix);
            }
        }
        self.rename("*._orig_mod.*", "*.*")
    }

    /// Renames what matches `from` to `to`.
    ///
    /// In `from`, `{n}` stands for a number, `{n>=18}` for a number in a range, `*` for any text.
    /// In `to`, `{n}`, `{n+1}`, `{n-1}` write the number and each `*` what the `*` at the same
    /// place among the stars of `from` stood for.
    pub fn rename(self, from: &str, to: &str) -> Self {
        self.with(|| {
            let (from, to) = pair(from, to)?;
            Ok(Rule::Rename(from, to))
        })
    }

    /// Declares names that the model does not need (training-only values, layers past the last one
    /// used); they are listed in the report and do not make it unclean.
    pub fn ignore(self, pattern: &str) -> Self {
        self.with(|| Ok(Rule::Ignore(Pattern::parse(pattern)?)))
    }

    /// Stacks the tensors that differ in the number `index` along a new leading axis, in the order
    /// of that number, which must run from 0 without gaps.
    pub fn stack(self, from: &str, index: &str, to: &str) -> Self {
        self.with(|| {
            let (from, to) = pair(from, to)?;
            if !from.has_number(index) {
                return Err(format!("'{{{index}}}' is not in '{from}'"));
            }
            let index = index.to_string();
            Ok(Rule::Stack { from, index, to })
        })
    }

    /// Puts tensors one after another along `axis` (negative axes count from the last).
    pub fn concat(self, from: &[&str], to: &str, axis: isize) -> Self {
        self.with(|| {
            let to = Template::parse(to)?;
            let from = from
                .iter()
                .map(|f| Pattern::parse(f))
                .collect::<Result<Vec<_>, _>>()?;
            from.iter().try_for_each(|f| to.check(f))?;
            if from.is_empty() {
                return Err(format!("nothing to put into '{to}'"));
            }
            Ok(Rule::Concat { from, to, axis })
        })
    }

    /// Takes slices along `axis` from `even` and `odd` in turn: `even` becomes 0, 2, 4, ..,
    /// `odd` 1, 3, 5, ...
    pub fn interleave(self, even: &str, odd: &str, to: &str, axis: isize) -> Self {
        self.with(|| {
            let (even, to) = pair(even, to)?;
            let odd = Pattern::parse(odd)?;
            to.check(&odd)?;
            Ok(Rule::Interleave {
                even,
                odd,
                to,
                axis,
            })
        })
    }

    /// Takes slices along `axis` from the first and the second half of one tensor in turn.
    pub fn interleave_halves(self, from: &str, to: &str, axis: isize) -> Self {
        self.with(|| {
            let (from, to) = pair(from, to)?;
            Ok(Rule::InterleaveHalves { from, to, axis })
        })
    }

    /// Cuts one tensor along `axis` into parts of the given sizes, equal ones when `None`.
    pub fn split(self, from: &str, to: &[&str], axis: isize, sizes: Option<&[usize]>) -> Self {
        self.with(|| {
            let from = Pattern::parse(from)?;
            let to = to
                .iter()
                .map(|t| Template::parse(t))
                .collect::<Result<Vec<_>, _>>()?;
            to.iter().try_for_each(|t| t.check(&from))?;
            if to.is_empty() || sizes.is_some_and(|s| s.len() != to.len()) {
                return Err(format!(
                    "'{from}' is split into {} names with other sizes",
                    to.len()
                ));
            }
            let sizes = sizes.map(<[_]>::to_vec);
            Ok(Rule::Split {
                from,
                to,
                axis,
                sizes,
            })
        })
    }

    /// Swaps two axes.
    pub fn transpose(self, from: &str, to: &str, axes: (isize, isize)) -> Self {
        self.with(|| {
            let (from, to) = pair(from, to)?;
            Ok(Rule::Transpose { from, to, axes })
        })
    }

    /// The rules of `user` first, then these: how a user's map file adapts a foreign layout.
    pub fn with_overrides(self, user: NameMap) -> Self {
        let mut rules = user.rules;
        rules.extend(self.rules);
        let mut mistakes = user.mistakes;
        mistakes.extend(self.mistakes);
        Self { rules, mistakes }
    }

    /// Reads a map file, TOML (`*.toml`) or JSON (`*.json`): a list `rules`, each with `do` and the
    /// fields of the method of that name.
    ///
    /// ```
    /// # use zonos_checkpoint::NameMap;
    /// let map = NameMap::from_toml(r#"
    ///     [[rules]]
    ///     do = "rename"
    ///     from = "codec.{i}.*"
    ///     to = "decoder.model.{i}.*"
    ///
    ///     [[rules]]
    ///     do = "ignore"
    ///     names = "*.num_batches_tracked"
    /// "#).unwrap();
    /// # assert!(map.check().is_ok());
    /// ```
    ///
    /// # Errors
    ///
    /// Names the file and the rule that is wrong.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let wrong = |reason: String| CheckpointError::Sidecar {
            path: path.into(),
            reason,
        };
        let meta = std::fs::metadata(path).map_err(|e| CheckpointError::io(path, e))?;
        if !meta.is_file() {
            return Err(wrong("not a regular file".into()));
        }
        if meta.len() > 16 << 20 {
            return Err(wrong("a map file of more than 16 MiB".into()));
        }
        let text = std::fs::read_to_string(path).map_err(|e| CheckpointError::io(path, e))?;
        let text = text.trim_start_matches('\u{feff}');
        match path.extension().and_then(|e| e.to_str()) {
            Some("toml") => Self::from_toml(text).map_err(wrong),
            Some("json") => Self::from_json(text).map_err(wrong),
            _ => Err(wrong("a map file ends in .toml or .json".into())),
        }
    }

    /// Parses the TOML form of [`NameMap::from_file`].
    ///
    /// # Errors
    ///
    /// The reason, with the line or the rule.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let file: RuleFile = toml::from_str(text).map_err(|e| e.to_string().trim().to_string())?;
        file.build()
    }

    /// Parses the JSON form of [`NameMap::from_file`].
    ///
    /// # Errors
    ///
    /// The reason, with the line or the rule.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let file: RuleFile = serde_json::from_str(text).map_err(|e| e.to_string())?;
        file.build()
    }

    /// Whether every pattern of every rule is well-formed.
    ///
    /// # Errors
    ///
    /// All mistakes, separated by semicolons.
    pub fn check(&self) -> Result<(), String> {
        if self.mistakes.is_empty() {
            Ok(())
        } else {
            Err(self.mistakes.join("; "))
        }
    }

    /// The builder methods cannot fail; what is wrong is kept for [`NameMap::check`], which the
    /// loader calls.
    fn with(mut self, rule: impl FnOnce() -> Result<Rule, String>) -> Self {
        match rule() {
            Ok(rule) => self.rules.push(rule),
            Err(mistake) => self.mistakes.push(mistake),
        }
        self
    }

    /// What the rules that only rename, prefixes and patterns, make of one name; for looking at a file
    /// before its model's map can be written.
    ///
    /// ```
    /// # use zonos_checkpoint::NameMap;
    /// let map = NameMap::new().strip_wrappers();
    /// assert_eq!(map.renamed("module._orig_mod.head.bias"), "head.bias");
    /// ```
    pub fn renamed(&self, name: &str) -> String {
        let mut name = name.to_owned();
        for rule in &self.rules {
            if let Some(new) = rule.renamed(&name) {
                name = new;
            }
        }
        name
    }

    /// Applies all rules to the tensors of a checkpoint.
    pub(crate) fn apply(&self, entries: &[Entry]) -> Mapped {
        let mut mapped = Mapped {
            items: entries
                .iter()
                .enumerate()
                .map(|(i, e)| Item {
                    name: e.name.clone(),
                    expr: Expr::File(i),
                })
                .collect(),
            ..Mapped::default()
        };
        for rule in &self.rules {
            rule.apply(&mut mapped, entries);
        }
        mapped
    }
}

/// What became of a checkpoint's tensors.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub(crate) items: Vec<Item>,
    /// File tensor and the pattern that declared it ignorable.
    pub(crate) ignored: Vec<(Vec<usize>, String)>,
    pub(crate) problems: Vec<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) expr: Expr,
}

impl Rule {
    /// The new name that a rule gives to a tensor it leaves as it is.
    fn renamed(&self, name: &str) -> Option<String> {
        match self {
            Self::StripPrefix(prefix) => name
                .strip_prefix(prefix.as_str())
                .filter(|rest| !rest.is_empty())
                .map(str::to_owned),
            Self::Rename(from, to) => from.matches(name).and_then(|c| to.render(&c)),
            _ => None,
        }
    }

    fn apply(&self, mapped: &mut Mapped, entries: &[Entry]) {
        match self {
            Self::StripPrefix(_) | Self::Rename(..) => {
                for item in &mut mapped.items {
                    if let Some(name) = self.renamed(&item.name) {
                        item.name = name;
                    }
                }
            }
            Self::Ignore(pattern) => {
                let (gone, kept) = std::mem::take(&mut mapped.items)
                    .into_iter()
                    .partition(|item| pattern.matches(&item.name).is_some());
                mapped.items = kept;
                for item in gone {
                    let mut sources = Vec::new();
                    item.expr.sources(&mut sources);
                    mapped.ignored.push((sources, pattern.to_string()));
                }
            }
            Self::Stack { from, index, to } => {
                let mut groups: BTreeMap<String, BTreeMap<u64, Item>> = BTreeMap::new();
                mapped.take(
                    |item| {
                        let captures = from.matches(&item.name)?;
                        Some((to.render(&captures)?, captures.number(index)?))
                    },
                    |(name, number), item| {
                        groups.entry(name).or_default().insert(number, item);
                    },
                );
                for (name, parts) in groups {
                    let whole = parts.keys().copied().eq(0..parts.len() as u64);
                    if !whole {
                        let have: Vec<String> = parts.keys().map(u64::to_string).collect();
                        mapped.problems.push(format!(
                            "'{name}' is stacked from parts numbered 0, 1, .. but the file has {}",
                            have.join(", ")
                        ));
                        continue;
                    }
                    let parts = parts.into_values().map(|i| i.expr).collect();
                    mapped.build(name, Expr::Stack(parts), entries);
                }
            }
            Self::Concat { from, to, axis } => {
                let mut groups: BTreeMap<String, BTreeMap<usize, Item>> = BTreeMap::new();
                mapped.take(
                    |item| {
                        from.iter().enumerate().find_map(|(place, pattern)| {
                            Some((to.render(&pattern.matches(&item.name)?)?, place))
                        })
                    },
                    |(name, place), item| {
                        groups.entry(name).or_default().insert(place, item);
                    },
                );
                for (name, parts) in groups {
                    if parts.len() < from.len() {
                        mapped.incomplete(&name, parts.into_values());
                        continue;
                    }
                    let parts: Vec<Expr> = parts.into_values().map(|i| i.expr).collect();
                    let axis = mapped.axis(&name, &parts[0], *axis, entries);
                    if let Some(axis) = axis {
                        mapped.build(name, Expr::Concat(parts, axis), entries);
                    }
                }
            }
            Self::Interleave {
                even,
                odd,
                to,
                axis,
            } => {
                let mut groups: BTreeMap<String, [Option<Item>; 2]> = BTreeMap::new();
                mapped.take(
                    |item| {
                        [even, odd]
                            .into_iter()
                            .enumerate()
                            .find_map(|(place, pattern)| {
                                Some((to.render(&pattern.matches(&item.name)?)?, place))
                            })
                    },
                    |(name, place), item| {
                        groups.entry(name).or_default()[place] = Some(item);
                    },
                );
                for (name, parts) in groups {
                    match parts {
                        [Some(a), Some(b)] => {
                            if let Some(axis) = mapped.axis(&name, &a.expr, *axis, entries) {
                                let parts = Box::new([a.expr, b.expr]);
                                mapped.build(name, Expr::Interleave(parts, axis), entries);
                            }
                        }
                        parts => mapped.incomplete(&name, parts.into_iter().flatten()),
                    }
                }
            }
            Self::InterleaveHalves { from, to, axis } => {
                mapped.each(from, to, |mapped, name, expr| {
                    if let Some(axis) = mapped.axis(&name, &expr, *axis, entries) {
                        mapped.build(name, Expr::InterleaveHalves(Box::new(expr), axis), entries);
                    }
                });
            }
            Self::Transpose { from, to, axes } => {
                mapped.each(from, to, |mapped, name, expr| {
                    let a = mapped.axis(&name, &expr, axes.0, entries);
                    let b = mapped.axis(&name, &expr, axes.1, entries);
                    if let (Some(a), Some(b)) = (a, b) {
                        mapped.build(name, Expr::Transpose(Box::new(expr), a, b), entries);
                    }
                });
            }
            Self::Split {
                from,
                to,
                axis,
                sizes,
            } => {
                let mut found = Vec::new();
                mapped.take(
                    |item| {
                        let captures = from.matches(&item.name)?;
                        to.iter()
                            .map(|t| t.render(&captures))
                            .collect::<Option<Vec<_>>>()
                    },
                    |names, item| found.push((names, item.expr)),
                );
                for (names, expr) in found {
                    let Some(axis) = mapped.axis(&names[0], &expr, *axis, entries) else {
                        continue;
                    };
                    let length = expr.signature(entries).map_or(0, |s| s.shape[axis]);
                    let equal = vec![length / names.len(); names.len()];
                    let sizes = sizes.as_ref().unwrap_or(&equal);
                    if sizes.iter().sum::<usize>() != length {
                        mapped.problems.push(format!(
                            "'{}' and {} more cannot be cut from an axis of {length} in parts of {sizes:?}",
                            names[0],
                            names.len() - 1
                        ));
                        continue;
                    }
                    let mut start = 0;
                    for (name, &len) in names.into_iter().zip(sizes) {
                        let part = Expr::Slice {
                            of: Box::new(expr.clone()),
                            axis,
                            start,
                            len,
                        };
                        mapped.build(name, part, entries);
                        start += len;
                    }
                }
            }
        }
    }
}

impl Mapped {
    /// Moves the items for which `choose` answers out of the list, to `put`.
    fn take<K>(&mut self, choose: impl Fn(&Item) -> Option<K>, mut put: impl FnMut(K, Item)) {
        let mut kept = Vec::with_capacity(self.items.len());
        for item in std::mem::take(&mut self.items) {
            match choose(&item) {
                Some(key) => put(key, item),
                None => kept.push(item),
            }
        }
        self.items = kept;
    }

    fn each(
        &mut self,
        from: &Pattern,
        to: &Template,
        mut build: impl FnMut(&mut Self, String, Expr),
    ) {
        let mut found = Vec::new();
        self.take(
            |item| to.render(&from.matches(&item.name)?),
            |name, item| found.push((name, item.expr)),
        );
        for (name, expr) in found {
            build(self, name, expr);
        }
    }

    /// A rule found only some of its parts: they stay under their own names, to be reported as
    /// unexpected.
    fn incomplete(&mut self, name: &str, parts: impl Iterator<Item = Item>) {
        let parts: Vec<Item> = parts.collect();
        let have: Vec<&str> = parts.iter().map(|i| i.name.as_str()).collect();
        self.problems.push(format!(
            "'{name}' is made of several tensors, of which the file has only {}",
            have.join(", ")
        ));
        self.items.extend(parts);
    }

    fn axis(&mut self, name: &str, expr: &Expr, axis: isize, entries: &[Entry]) -> Option<usize> {
        let found = expr.signature(entries).and_then(|s| {
            let rank = s.shape.len();
            let at = if axis < 0 {
                rank.checked_add_signed(axis)
            } else {
                usize::try_from(axis).ok()
            };
            at.filter(|&a| a < rank)
                .ok_or_else(|| format!("shape {:?} has no axis {axis}", s.shape))
        });
        found
            .map_err(|e| self.problems.push(format!("'{name}': {e}")))
            .ok()
    }

    fn build(&mut self, name: String, expr: Expr, entries: &[Entry]) {
        match expr.signature(entries) {
            Ok(_) => self.items.push(Item { name, expr }),
            Err(e) => self.problems.push(format!("'{name}': {e}")),
        }
    }
}

fn pair(from: &str, to: &str) -> Result<(Pattern, Template), String> {
    let from = Pattern::parse(from)?;
    let to = Template::parse(to)?;
    to.check(&from)?;
    Ok((from, to))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(default)]
    rules: Vec<RuleText>,
}

#[derive(serde::Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum RuleText {
    StripPrefix {
        prefix: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Ignore {
        names: String,
    },
    Stack {
        from: String,
        index: String,
        to: String,
    },
    Concat {
        from: Vec<String>,
        to: String,
        axis: isize,
    },
    Interleave {
        even: String,
        odd: String,
        to: String,
        axis: isize,
    },
    InterleaveHalves {
        from: String,
        to: String,
        axis: isize,
    },
    Split {
        from: String,
        to: Vec<String>,
        axis: isize,
        sizes: Option<Vec<usize>>,
    },
    Transpose {
        from: String,
        to: String,
        axes: (isize, isize),
    },
}

impl RuleFile {
    fn build(self) -> Result<NameMap, String> {
        let mut map = NameMap::new();
        for rule in self.rules {
            map = match rule {
                RuleText::StripPrefix { prefix } => map.strip_prefix(&prefix),
                RuleText::Rename { from, to } => map.rename(&from, &to),
                RuleText::Ignore { names } => map.ignore(&names),
                RuleText::Stack { from, index, to } => map.stack(&from, &index, &to),
                RuleText::Concat { from, to, axis } => {
                    let from: Vec<&str> = from.iter().map(String::as_str).collect();
                    map.concat(&from, &to, axis)
                }
                RuleText::Interleave {
                    even,
                    odd,
                    to,
                    axis,
                } => map.interleave(&even, &odd, &to, axis),
                RuleText::InterleaveHalves { from, to, axis } => {
                    map.interleave_halves(&from, &to, axis)
                }
                RuleText::Split {
                    from,
                    to,
                    axis,
                    sizes,
                } => {
                    let to: Vec<&str> = to.iter().map(String::as_str).collect();
                    map.split(&from, &to, axis, sizes.as_deref())
                }
                RuleText::Transpose { from, to, axes } => map.transpose(&from, &to, axes),
            };
        }
        map.check()?;
        Ok(map)
    }
}
