//! PodTemplates: a template on its own.

use crate::shared::object_metadata;
use crate::shared::pod::validation::{PodOptions, validate_pod_template_spec};
use crate::shared::pod::{defaults, init_annotations, table_cells, warnings};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_registry::settings::Privileged;
use polyplane_registry::strategy::{Context, Strategy};

/// Behaviour of PodTemplates.
#[derive(Debug)]
pub struct PodTemplate;

impl Strategy for PodTemplate {
    fn default(&self, object: &mut Value) {
        defaults::default_template_at(object, &["template"]);
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        init_annotations::drop_at(object, &["template"]);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, _: &Value) {
        init_annotations::drop_at(object, &["template"]);
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        errors.extend(template_errors(object, None, context.settings.privileged));
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        errors.extend(template_errors(
            object,
            Some(old),
            context.settings.privileged,
        ));
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        let generation = |object: &Value| object.int_at(&["metadata", "generation"]);
        if old.is_some_and(|old| generation(old) == generation(object)) {
            return Vec::new();
        }
        warnings::template(&object["template"], &Path::new("template"))
    }

    fn cells(&self, object: &Value, _: i64) -> Vec<Value> {
        let template = &object["template"];
        let (names, images) = table_cells::containers(&template["spec"]);
        vec![
            Value::string(object.str_at(&["metadata", "name"])),
            Value::from(names),
            Value::from(images),
            Value::from(table_cells::labels(&template["metadata"]["labels"])),
        ]
    }

    fn returns_deleted(&self) -> bool {
        true
    }
}

fn template_errors(object: &Value, old: Option<&Value>, privileged: Privileged) -> Complaints {
    let options = PodOptions::for_template(old.map(|old| &old["template"])).with(privileged);
    validate_pod_template_spec(&object["template"], &Path::new("template"), &options)
}
