{{- define "hub.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "hub.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "hub.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "hub.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "hub.selector" -}}
app.kubernetes.io/name: {{ include "hub.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "hub.labels" -}}
{{ include "hub.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "nats.selector" -}}
app.kubernetes.io/name: {{ include "hub.name" . }}-nats
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nats.labels" -}}
{{ include "nats.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* The pods of a StatefulSet have a label with its name and 11 characters, 63 in all. */ -}}
{{- define "nats.fullname" -}}
{{- printf "%s-nats" (include "hub.fullname" . | trunc 47 | trimSuffix "-") -}}
{{- end -}}

{{- /* The name of a NATS server, in its certificate: a pod's, and that of the Service that names pods. */ -}}
{{- define "nats.server" -}}
{{- $name := include "nats.fullname" .root -}}
{{ $name }}-{{ .i }}.{{ $name }}
{{- end -}}

{{- /* The text of hub.yaml. */ -}}
{{- define "hub.settings" -}}
{{- $address := .Values.address | default (list (printf "%s.%s.svc" (include "hub.fullname" .) .Release.Namespace)) -}}
{{- $own := dict "hub" (dict "address" $address) -}}
{{- if .Values.cluster.enabled -}}
{{- $store := dict "engine" "nats" "peer" (dict "listen" ":8447") -}}
{{- if .Values.cluster.nats.enabled -}}
{{- $servers := list -}}{{- $monitors := list -}}
{{- range $i := until 3 -}}
{{- $server := include "nats.server" (dict "root" $ "i" $i) -}}
{{- $servers = append $servers (printf "tls://%s:4222" $server) -}}
{{- $monitors = append $monitors (printf "https://%s:8222" $server) -}}
{{- end -}}
{{- $store = set $store "nats" (dict "servers" $servers "monitor" $monitors) -}}
{{- else if not (or .Values.existingSecret (dig "store" "nats" "servers" list .Values.settings)) -}}
{{- fail "settings.store.nats.servers: name your NATS servers, or leave cluster.nats.enabled true" -}}
{{- end -}}
{{- $own = set $own "store" $store -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.settings) $own | toYaml -}}
{{- end -}}

{{- /* Where pods of one kind may be: what is said, or else no two on one machine. */ -}}
{{- define "hub.affinity" -}}
{{- with .root.Values.affinity -}}
{{- toYaml . -}}
{{- else -}}
podAntiAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- include (printf "%s.selector" .kind) .root | nindent 10 }}
{{- end -}}
{{- end -}}
