{{/* The name of all objects of a release. */}}
{{- define "amalgam.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* The labels by which objects of a release find their pods. */}}
{{- define "amalgam.selector" -}}
app.kubernetes.io/name: amalgam
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "amalgam.labels" -}}
{{ include "amalgam.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "amalgam.tokens" -}}
{{- .Values.tokensSecret | default (printf "%s-tokens" (include "amalgam.name" .)) -}}
{{- end }}

{{/* How the admin address is asked. */}}
{{- define "amalgam.adminScheme" -}}
{{- $isOn := or .Values.tls.secret (has "--admin-tls" .Values.arguments) -}}
{{- ternary "HTTPS" "HTTP" (not (empty $isOn)) -}}
{{- end }}

{{/* A size such as 1g in MiB. */}}
{{- define "amalgam.mebibytes" -}}
{{- if hasSuffix "g" . -}}
{{- mul (trimSuffix "g" . | int) 1024 -}}
{{- else -}}
{{- trimSuffix "m" . | int -}}
{{- end -}}
{{- end }}

{{/* The memory of a pod in MiB: keys and chunks; copies in memory, and an eighth for their index;
     buffers of clients, of other nodes, and of answers of other nodes (docs/operations.md). */}}
{{- define "amalgam.limit" -}}
{{- $keys := include "amalgam.mebibytes" .Values.memory | int -}}
{{- $chunks := include "amalgam.mebibytes" .Values.chunkMemory | int -}}
{{- $copies := include "amalgam.mebibytes" .Values.backups.space | int -}}
{{- $index := div $copies 8 -}}
{{- if or (eq (int .Values.backups.count) 0) -}}
{{- $copies = 0 -}}{{- $index = 0 -}}
{{- else if eq .Values.backups.medium "disk" -}}
{{- $copies = 0 -}}
{{- end -}}
{{- $others := mul (int .Values.threads) (add 16 32 (mul 8 (int .Values.nodes))) -}}
{{- add $keys $chunks $copies $index $others 256 (div (int .Values.connections) 64) -}}
{{- end }}
