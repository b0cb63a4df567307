//! Excerpts of the schemas of Kubernetes' API, and of the MPI Operator's: the fields that files of `deploy/` may use. A field that is
//! not here must be added from the API's reference before it is used.

use serde_json::{Map as Object, Value};

enum Shape {
    Text,
    OneOf(&'static [&'static str]),
    Whole,
    Flag,
    /// A number, or a text such as `64Gi`.
    Quantity,
    List(&'static Shape),
    Map(&'static Shape),
    Fields(&'static [Field]),
}

use Shape::{Fields, Flag, List, Map, OneOf, Quantity, Text, Whole};

struct Field {
    name: &'static str,
    shape: Shape,
    is_required: bool,
}

const fn field(name: &'static str, shape: Shape) -> Field {
    Field { name, shape, is_required: false }
}

const fn required(name: &'static str, shape: Shape) -> Field {
    Field { name, shape, is_required: true }
}

/// `ObjectMeta` of meta/v1.
const METADATA: Shape = Fields(&[
    field("name", Text),
    field("namespace", Text),
    field("labels", Map(&Text)),
    field("annotations", Map(&Text)),
]);

/// `Container` of core/v1; that of a pod template needs an image.
const CONTAINER: Shape = Fields(&[
    required("name", Text),
    required("image", Text),
    field("imagePullPolicy", OneOf(&["Always", "IfNotPresent", "Never"])),
    field("command", List(&Text)),
    field("args", List(&Text)),
    field("workingDir", Text),
    field("env", List(&Fields(&[required("name", Text), field("value", Text)]))),
    field("resources", Fields(&[field("limits", Map(&Quantity)), field("requests", Map(&Quantity))])),
    field(
        "volumeMounts",
        List(&Fields(&[
            required("name", Text),
            required("mountPath", Text),
            field("subPath", Text),
            field("readOnly", Flag),
        ])),
    ),
]);

/// `Volume` of core/v1.
const VOLUME: Shape = Fields(&[
    required("name", Text),
    field("persistentVolumeClaim", Fields(&[required("claimName", Text), field("readOnly", Flag)])),
    field("secret", Fields(&[field("secretName", Text), field("defaultMode", Whole), field("optional", Flag)])),
    field("emptyDir", Fields(&[field("medium", Text), field("sizeLimit", Quantity)])),
]);

/// `PodTemplateSpec` of core/v1.
const TEMPLATE: Shape = Fields(&[
    field("metadata", METADATA),
    required(
        "spec",
        Fields(&[
            required("containers", List(&CONTAINER)),
            field("volumes", List(&VOLUME)),
            field("restartPolicy", OneOf(&["Always", "OnFailure", "Never"])),
            field("hostname", Text),
            field("subdomain", Text),
            field("nodeSelector", Map(&Text)),
            field("serviceAccountName", Text),
            field("terminationGracePeriodSeconds", Whole),
        ]),
    ),
]);

const fn kind(spec: &'static [Field]) -> [Field; 4] {
    [
        required("apiVersion", Text),
        required("kind", Text),
        required("metadata", METADATA),
        required("spec", Fields(spec)),
    ]
}

/// core/v1.
static SERVICE: [Field; 4] = kind(&[
    field("clusterIP", Text),
    field("type", OneOf(&["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"])),
    field("publishNotReadyAddresses", Flag),
    field("selector", Map(&Text)),
    field("ports", List(&Fields(&[required("port", Whole), field("name", Text), field("targetPort", Quantity)]))),
]);

/// batch/v1; `successPolicy` is there by default from Kubernetes 1.31 on.
static JOB: [Field; 4] = kind(&[
    field("completionMode", OneOf(&["NonIndexed", "Indexed"])),
    field("completions", Whole),
    field("parallelism", Whole),
    field("backoffLimit", Whole),
    field("backoffLimitPerIndex", Whole),
    field("activeDeadlineSeconds", Whole),
    field("ttlSecondsAfterFinished", Whole),
    field("suspend", Flag),
    field(
        "successPolicy",
        Fields(&[required("rules", List(&Fields(&[field("succeededIndexes", Text), field("succeededCount", Whole)])))]),
    ),
    required("template", TEMPLATE),
]);

/// `ReplicaSpec` of kubeflow.org.
const REPLICAS: Shape = Fields(&[
    field("replicas", Whole),
    field("restartPolicy", OneOf(&["Always", "OnFailure", "Never", "ExitCode"])),
    field("template", TEMPLATE),
]);

/// kubeflow.org/v2beta1.
static MPI_JOB: [Field; 4] = kind(&[
    field("slotsPerWorker", Whole),
    field("runLauncherAsWorker", Flag),
    field("sshAuthMountPath", Text),
    field("launcherCreationPolicy", OneOf(&["AtStartup", "WaitForWorkersReady"])),
    field("mpiImplementation", OneOf(&["OpenMPI", "Intel", "MPICH"])),
    field(
        "runPolicy",
        Fields(&[
            field("cleanPodPolicy", OneOf(&["None", "Running", "All"])),
            field("ttlSecondsAfterFinished", Whole),
            field("activeDeadlineSeconds", Whole),
            field("backoffLimit", Whole),
            field("suspend", Flag),
        ]),
    ),
    required("mpiReplicaSpecs", Fields(&[required("Launcher", REPLICAS), field("Worker", REPLICAS)])),
]);

/// What is wrong with a document, each with its place.
pub(crate) fn problems(document: &Value) -> Vec<String> {
    let text = |name: &str| document[name].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let fields = match (version, kind) {
        ("v1", "Service") => &SERVICE,
        ("batch/v1", "Job") => &JOB,
        ("kubeflow.org/v2beta1", "MPIJob") => &MPI_JOB,
        _ => return vec![format!("{version} {kind}: not known here")],
    };
    let mut problems = Vec::new();
    match document.as_object() {
        Some(object) => check_fields(object, fields, kind, &mut problems),
        None => problems.push(format!("{kind}: not an object")),
    }
    problems
}

fn check(value: &Value, shape: &Shape, place: &str, problems: &mut Vec<String>) {
    let expected = match (shape, value) {
        (Text, Value::String(_)) | (Flag, Value::Bool(_)) | (Quantity, Value::String(_) | Value::Number(_)) => return,
        (Whole, Value::Number(number)) if number.is_i64() || number.is_u64() => return,
        (OneOf(names), Value::String(name)) if names.contains(&name.as_str()) => return,
        (List(shape), Value::Array(items)) => {
            let numbered = items.iter().enumerate();
            return numbered.for_each(|(index, item)| check(item, shape, &format!("{place}[{index}]"), problems));
        }
        (Map(shape), Value::Object(object)) => {
            return object.iter().for_each(|(name, value)| check(value, shape, &of(place, name), problems));
        }
        (Fields(fields), Value::Object(object)) => return check_fields(object, fields, place, problems),
        (OneOf(names), _) => return problems.push(format!("{place}: none of {}", names.join(", "))),
        (Text, _) => "not a text",
        (Whole, _) => "not a whole number",
        (Flag, _) => "neither true nor false",
        (Quantity, _) => "neither a number nor a text",
        (List(_), _) => "not a list",
        (Map(_) | Fields(_), _) => "not an object",
    };
    problems.push(format!("{place}: {expected}"));
}

fn check_fields(object: &Object<String, Value>, fields: &[Field], place: &str, problems: &mut Vec<String>) {
    for (name, value) in object {
        match fields.iter().find(|field| name == field.name) {
            Some(field) => check(value, &field.shape, &of(place, name), problems),
            None => problems.push(format!("{place}: there is no field {name}")),
        }
    }
    for field in fields.iter().filter(|field| field.is_required && !object.contains_key(field.name)) {
        problems.push(format!("{place}: {} is missing", field.name));
    }
}

fn of(place: &str, name: &str) -> String {
    format!("{place}.{name}")
}
