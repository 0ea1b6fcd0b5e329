//! A sequence of writes to one object, as it follows from a seed.

use std::fmt;

use serde_json::{Value, json};

use super::kinds::{Kind, Version};
use super::vary::{self, Boldness};
use crate::dice::Dice;

/// The most writes of a sequence. More would find the same with more requests.
const STEPS_MAX: usize = 10;
/// The managers; the rules of client-side apply know the last one.
const MANAGERS: [&str; 3] = ["m1", "m2", "kubectl"];

const JSON: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

/// The writes to one object.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// What the sequence follows from.
    pub seed: u64,
    /// The kind of the object.
    pub kind: String,
    /// The path of the object, with `{ns}` for the namespace and `{name}` for the name.
    pub path: String,
    /// The writes.
    pub steps: Vec<Step>,
}

/// One write.
#[derive(Clone, Debug)]
pub struct Step {
    /// The manager that the request names.
    pub manager: &'static str,
    /// The method.
    pub method: &'static str,
    /// The path with its query and with `{ns}` and `{name}`.
    pub path: String,
    /// The type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Body,
}

/// What a write sends.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Nothing: the step reads.
    Nothing,
    /// This.
    Sent(Value),
    /// This, with the version of the live object.
    WithVersion(Value),
    /// The live object, changed as a seed says.
    Edited(u64),
}

impl Step {
    /// Returns true for a server-side apply.
    pub fn is_apply(&self) -> bool {
        self.content_type == APPLY
    }

    /// Returns true for a server-side apply that takes fields from other managers.
    pub fn is_forced(&self) -> bool {
        self.is_apply() && self.path.contains("force=true")
    }

    /// Returns true if the answer is the object, not its scale.
    pub fn answers_object(&self) -> bool {
        !self.path.contains("/scale")
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{} {}", self.method, self.path)?;
        if self.body != Body::Nothing {
            writeln!(out, "Content-Type: {}", self.content_type)?;
        }
        match &self.body {
            Body::Nothing => Ok(()),
            Body::Sent(body) => writeln!(out, "\n{body}"),
            Body::WithVersion(body) => writeln!(out, "\n(with the live version)\n{body}"),
            Body::Edited(seed) => writeln!(out, "\n(the live object, edited with seed {seed})"),
        }
    }
}

impl Sequence {
    /// Returns the sequence of a seed.
    ///
    /// # Panics
    /// Panics if there are no kinds.
    pub fn of(seed: u64, kinds: &[Kind]) -> Self {
        let mut dice = Dice::new(seed);
        let several: Vec<&Kind> = kinds
            .iter()
            .filter(|kind| kind.versions.len() > 1)
            .collect();
        let kind = match dice.chance(20) && !several.is_empty() {
            true => *dice.pick(&several),
            false => dice.pick(kinds),
        };
        let home = dice.below(kind.versions.len());
        let mut maker = Maker {
            example: dice.pick(&kind.versions[home].examples).clone(),
            dice,
            kind,
            home,
        };
        let path = maker.path(home, "");
        let mut steps = vec![maker.first()];
        let count = 4 + maker.dice.below(STEPS_MAX - 4);
        while steps.len() < count {
            let step = maker.next();
            let reads = !step.answers_object();
            steps.push(step);
            if reads {
                steps.push(maker.read());
            }
        }
        Self {
            seed,
            kind: kind.name.clone(),
            path,
            steps,
        }
    }
}

/// Makes the steps of a sequence.
struct Maker<'k> {
    dice: Dice,
    kind: &'k Kind,
    /// The version of most requests.
    home: usize,
    example: Value,
}

impl Maker<'_> {
    fn version(&self, at: usize) -> &Version {
        &self.kind.versions[at]
    }

    fn path(&self, at: usize, rest: &str) -> String {
        let name = self.example["metadata"]["name"]
            .as_str()
            .unwrap_or_default();
        format!("{}/{name}{rest}", self.version(at).collection)
    }

    fn manager(&mut self) -> &'static str {
        MANAGERS[self.dice.below(MANAGERS.len())]
    }

    fn variant(&mut self) -> Value {
        let boldness = Boldness::any(&mut self.dice);
        vary::variant(&mut self.dice, &self.example, boldness)
    }

    fn step(&mut self, method: &'static str, rest: &str, kind: &'static str, body: Body) -> Step {
        let manager = self.manager();
        let separator = if rest.contains('?') { '&' } else { '?' };
        let path = self.path(
            self.home,
            &format!("{rest}{separator}fieldManager={manager}"),
        );
        Step {
            manager,
            method,
            path,
            content_type: kind,
            body,
        }
    }

    fn first(&mut self) -> Step {
        let whole = Boldness {
            drop: 0,
            change: 0,
            empty: *self.dice.pick(&[0, 0, 2]),
        };
        let mut body = vary::variant(&mut self.dice, &self.example, whole);
        if self.dice.chance(50) {
            return self.step("PATCH", "", APPLY, Body::Sent(body));
        }
        let mut step = self.step("POST", "", JSON, Body::Nothing);
        if step.manager == "kubectl" {
            let applied = body.clone();
            vary::note_last_applied(&mut body, &applied);
        }
        step.path = format!(
            "{}?fieldManager={}",
            self.version(self.home).collection,
            step.manager
        );
        step.body = Body::Sent(body);
        step
    }

    fn read(&mut self) -> Step {
        let path = self.path(self.home, "");
        Step {
            manager: "",
            method: "GET",
            path,
            content_type: "",
            body: Body::Nothing,
        }
    }

    fn next(&mut self) -> Step {
        let version = self.version(self.home);
        let (status, scale) = (version.status, version.scale);
        if self.kind.versions.len() > 1 && self.dice.chance(35) {
            return self.in_other_version();
        }
        match self.dice.below(100) {
            0..34 => self.apply(),
            34..46 => self.put(),
            46..56 => {
                let seed = self.dice.next_number();
                self.step("PUT", "", JSON, Body::Edited(seed))
            }
            56..66 => self.patch(MERGE),
            66..74 => self.patch(STRATEGIC),
            74..82 => self.json_patch(),
            82..92 if status => self.write_status(),
            92..100 if scale => self.write_scale(),
            _ => self.apply(),
        }
    }

    fn apply(&mut self) -> Step {
        let body = self.variant();
        let force = if self.dice.chance(40) {
            "?force=true"
        } else {
            ""
        };
        self.step("PATCH", force, APPLY, Body::Sent(body))
    }

    fn in_other_version(&mut self) -> Step {
        let (home, example) = (self.home, self.example.clone());
        self.home = (self.home + 1) % self.kind.versions.len();
        let name = self.example["metadata"]["name"].clone();
        self.example = self
            .dice
            .pick(&self.kind.versions[self.home].examples)
            .clone();
        self.example["metadata"]["name"] = name;
        let step = match self.dice.below(3) {
            0 => self.patch(MERGE),
            1 => {
                let seed = self.dice.next_number();
                self.step("PUT", "", JSON, Body::Edited(seed))
            }
            _ => self.apply(),
        };
        (self.home, self.example) = (home, example);
        step
    }

    fn put(&mut self) -> Step {
        let body = self.variant();
        let body = match self.version(self.home).needs_version {
            true => Body::WithVersion(body),
            false => Body::Sent(body),
        };
        self.step("PUT", "", JSON, body)
    }

    fn patch(&mut self, kind: &'static str) -> Step {
        let mut body = self.variant();
        if let Some(members) = body.as_object_mut()
            && self.dice.chance(70)
        {
            members.remove("status");
        }
        if self.dice.chance(10) {
            let name = *self.dice.pick(&["labels", "annotations"]);
            body["metadata"][name] = json!({"x": null, "a": null});
        }
        let mut step = self.step("PATCH", "", kind, Body::Nothing);
        if step.manager == "kubectl" && self.dice.chance(40) {
            let applied = body.clone();
            vary::note_last_applied(&mut body, &applied);
        }
        step.body = Body::Sent(body);
        step
    }

    fn json_patch(&mut self) -> Step {
        let mut operations = Vec::new();
        if self.dice.chance(50) {
            let labels = vary::labels(&mut self.dice);
            operations.push(json!({"op": "add", "path": "/metadata/labels", "value": labels}));
        }
        let body = self.variant();
        let Some(members) = body.as_object() else {
            return self.apply();
        };
        let names: Vec<&String> = members
            .keys()
            .filter(|name| !["apiVersion", "kind", "metadata", "status"].contains(&name.as_str()))
            .collect();
        if let Some(name) = names.get(self.dice.below(names.len())) {
            let (path, value) = match body[*name].as_object() {
                Some(inner) if !inner.is_empty() && self.dice.chance(70) => {
                    let keys: Vec<&String> = inner.keys().collect();
                    let key = *self.dice.pick(&keys);
                    (format!("/{name}/{key}"), inner[key].clone())
                }
                _ => (format!("/{name}"), body[*name].clone()),
            };
            let may_go = vary::may_go(path.rsplit('/').next().unwrap_or_default());
            operations.push(match may_go && self.dice.chance(15) {
                true => json!({"op": "remove", "path": path}),
                false => json!({"op": "add", "path": path, "value": value}),
            });
        }
        self.step("PATCH", "", JSON_PATCH, Body::Sent(json!(operations)))
    }

    fn write_status(&mut self) -> Step {
        let body = self.variant();
        match self.dice.below(3) {
            0 => {
                let force = match self.dice.chance(40) {
                    true => "/status?force=true",
                    false => "/status",
                };
                self.step("PATCH", force, APPLY, Body::Sent(body))
            }
            1 => self.step("PUT", "/status", JSON, Body::WithVersion(body)),
            _ => {
                let kind = *self.dice.pick(&[MERGE, STRATEGIC]);
                self.step("PATCH", "/status", kind, Body::Sent(body))
            }
        }
    }

    fn write_scale(&mut self) -> Step {
        let name = self.example["metadata"]["name"].clone();
        let replicas = self.dice.below(4);
        let scale = json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale",
            "metadata": {"name": name, "namespace": "{ns}"}, "spec": {"replicas": replicas},
        });
        match self.dice.below(3) {
            0 => self.step("PUT", "/scale", JSON, Body::Sent(scale)),
            1 => {
                let force = match self.dice.chance(60) {
                    true => "/scale?force=true",
                    false => "/scale",
                };
                self.step("PATCH", force, APPLY, Body::Sent(scale))
            }
            _ => {
                let body = json!({"spec": {"replicas": replicas}});
                self.step("PATCH", "/scale", MERGE, Body::Sent(body))
            }
        }
    }
}
