//! Gradients of a module's parameters, under the names of the checkpoint.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

use crate::host::HostTensor;

/// Visits `module` and looks up the gradient of each float parameter. `rename` turns the path of
/// fields into the checkpoint's name.
pub(crate) fn gradients_by_name<M: Module>(
    module: &M,
    gradients: &Gradients,
    rename: impl Fn(&str) -> String,
) -> super::Gradients {
    let mut collector = Collector {
        path: Vec::new(),
        gradients,
        rename,
        found: super::Gradients::new(),
    };
    module.visit(&mut collector);
    collector.found
}

struct Collector<'a, F> {
    path: Vec<String>,
    gradients: &'a Gradients,
    rename: F,
    found: super::Gradients,
}

impl<F: Fn(&str) -> String> ModuleVisitor for Collector<'_, F> {
    fn enter_module(&mut self, name: &str, container: &str) {
        // Variants of an enum are no level of the checkpoint.
        if !container.starts_with("Enum") || !name.starts_with(char::is_uppercase) {
            self.path.push(name.to_owned());
        } else {
            self.path.push(String::new());
        }
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let parts: Vec<_> = self
            .path
            .iter()
            .map(String::as_str)
            .filter(|p| !p.is_empty())
            .collect();
        let name = (self.rename)(&parts.join("."));
        let gradient = param
            .val()
            .grad(self.gradients)
            .map(|g| HostTensor::from_data(&g.into_data()));
        self.found.insert(name, gradient);
    }
}
