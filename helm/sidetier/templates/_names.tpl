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
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The same, and labels of one object, which take precedence over commonLabels: (list root labels) */}}
{{- define "sidetier.labelsWith" -}}
{{- merge (dict) (default dict (index . 1)) (include "sidetier.labels" (index . 0) | fromYaml) | toYaml -}}
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

{{/* Evicts one pod at a time when nodes are drained: (dict "root" $ "name" name "component" label) */}}
{{- define "sidetier.podDisruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels:
    {{- include "sidetier.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "sidetier.selectorLabels" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Where the runbook pages are, without a final slash. */}}
{{- define "sidetier.runbookUrl" -}}
{{- default (printf "%s/blob/main/docs/runbook" .Chart.Home) .Values.prometheusRule.runbookUrl | trimSuffix "/" -}}
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
{{- if not $image.repository -}}
{{- fail "image.repository is required: no registry has a public image of Sidetier. Build it from the Dockerfile of the repository, push it to a registry that your cluster can reach, and name it (image: {repository: registry.example.com/sidetier})" -}}
{{- end -}}
{{- if $image.digest -}}
{{ printf "%s@%s" $image.repository $image.digest }}
{{- else -}}
{{ printf "%s:%s" $image.repository (default (index . 1) $image.tag) }}
{{- end -}}
{{- end -}}
