{{/* Name of the Deployment and prefix of everything else: tandem-operator for a release "tandem". */}}
{{- define "tandem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $base := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- printf "%s-operator" ($base | trunc 40 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{/* Labels by which the operator's pods are found. The replicas' pods have name "tandem". */}}
{{- define "tandem.selectorLabels" -}}
app.kubernetes.io/name: tandem-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tandem.labels" -}}
{{ include "tandem.selectorLabels" . }}
app.kubernetes.io/part-of: tandem
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{- define "tandem.serviceAccountName" -}}
{{- default (.Values.serviceAccount.create | ternary (include "tandem.fullname" .) "default") .Values.serviceAccount.name -}}
{{- end -}}

{{/* Refuse the value `name` unless its image names a registry, as nodes tell one: by a dot, a port, or localhost. */}}
{{- define "tandem.checkRegistry" -}}
{{- if not (regexMatch "^(localhost|[^/]*[.:][^/]*)/." .image) -}}
{{- fail (printf "%s is %q, which names no registry: a node would pull it from docker.io, where the name may be another owner's; write one such as registry.example/tandem/%s" .name .image .which) -}}
{{- end -}}
{{- end -}}

{{- define "tandem.image" -}}
{{- with .Values.image -}}
{{- include "tandem.checkRegistry" (dict "name" "image.repository" "image" .repository "which" "operator") -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether there is a PodMonitor: as the values say, and with `auto` where the cluster knows the kind. */}}
{{- define "tandem.hasPodMonitor" -}}
{{- $enabled := toString .Values.metrics.podMonitor.enabled -}}
{{- or (eq $enabled "true") (and (eq $enabled "auto") (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor")) -}}
{{- end -}}

{{/* The operator's settings: what the chart knows, with .Values.settings over it. */}}
{{- define "tandem.settings" -}}
{{- $replica := dig "replica" "image" "" .Values.settings -}}
{{- include "tandem.checkRegistry" (dict "name" "settings.replica.image" "image" $replica "which" (printf "replica:%s" .Chart.AppVersion)) -}}
{{- $operator := dict
  "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace))
  "podSelector" (dict "matchLabels" (include "tandem.selectorLabels" . | fromYaml)) -}}
{{- $known := dict
  "namespaces" .Values.namespaces
  "prometheusRule" .Values.metrics.prometheusRule
  "access" (dict "operator" (list $operator) "kuberay" .Values.networkPeers.kuberay "prometheus" .Values.networkPeers.prometheus "apiServerPorts" .Values.networkPolicy.apiServerPorts) -}}
{{- mustMergeOverwrite $known (deepCopy .Values.settings) | toYaml -}}
{{- end -}}

{{/* The operator's rights where services live. tests/integration/chart holds them against what is used. */}}
{{- define "tandem.rules" -}}
- apiGroups: [serving.tandem.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [serving.tandem.dev]
  resources: [inferenceservices/status]
  verbs: [patch]
# What mode Auto leaves, and what an HPA is to read first.
- apiGroups: [serving.tandem.dev]
  resources: [inferenceservices/scale]
  verbs: [patch]
# Where OwnerReferencesPermissionEnforcement is on, owning an object that blocks deletion asks for it.
- apiGroups: [serving.tandem.dev]
  resources: [inferenceservices/finalizers]
  verbs: [update]
- apiGroups: [ray.io]
  resources: [rayservices]
  verbs: [get, list, watch, create, patch]
# Why KubeRay makes no pods is said by its RayCluster.
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# Ray's token is made and never read, so the operator sees no Secret of a service.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
# KubeRay's Services are watched; a Service that has the endpoint's name already is read.
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch]
# Claims of weights.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
# Read are those about pods that cannot begin: a Secret or a volume may be missing.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
{{- if ne (toString .Values.metrics.prometheusRule.enabled) "false" }}
- apiGroups: [monitoring.coreos.com]
  resources: [prometheusrules]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- end -}}
