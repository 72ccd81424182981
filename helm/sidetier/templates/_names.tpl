{{/* Names and labels. */}}

{{- define "sidetier.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, to leave space for suffixes. */}}
{{- define "sidetier.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- $name = .Values.fullnameOverride -}}
{{- else if not (contains $name .Release.Name) -}}
{{- $name = printf "%s-%s" .Release.Name $name -}}
{{- else -}}
{{- $name = .Release.Name -}}
{{- end -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "sidetier.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "sidetier.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "sidetier.selectorLabels" -}}
app.kubernetes.io/name: {{ include "sidetier.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of the pods that contain a sidecar, from this chart or another one. */}}
{{- define "sidetier.podSelector" -}}
{{- if .Values.kafka.enabled -}}
{{ include "sidetier.selectorLabels" . }}
app.kubernetes.io/component: kafka
{{- else if eq .Values.mode "nodeAgent" -}}
{{ include "sidetier.selectorLabels" . }}
app.kubernetes.io/component: node-agent
{{- else -}}
{{ toYaml .Values.sidecar.podSelector }}
{{- end -}}
{{- end -}}

{{- define "sidetier.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "sidetier.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* Reference of an image, by digest if one is given: (list image default-tag) */}}
{{- define "sidetier.imageOf" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ printf "%s@%s" $image.repository $image.digest }}
{{- else -}}
{{ printf "%s:%s" $image.repository (default (index . 1) $image.tag) }}
{{- end -}}
{{- end -}}
