{{/* Settings of the configuration that the manifests use. */}}

{{/* Sets http.host to 0.0.0.0: probes and Prometheus connect from outside of the container, and cannot reach
127.0.0.1. Sets http.runbook_url, so that the status pages link to the same runbook as the alerts. */}}
{{- define "sidetier.config" -}}
{{- $http := dict -}}
{{- if ne .Values.mode "jobs" }}{{ $_ := set $http "host" "0.0.0.0" }}{{ end -}}
{{- if or (ne .Values.mode "jobs") .Values.fleet.enabled .Values.serve.enabled }}{{ $_ := set $http "runbook_url" (include "sidetier.runbookUrl" .) }}{{ end -}}
{{- $own := ternary (dict "http" $http) dict (not (empty $http)) -}}
{{- toYaml (mustMergeOverwrite $own (deepCopy .Values.config)) -}}
{{- end -}}

{{- define "sidetier.port" -}}
{{- dig "http" "port" 9108 .Values.config | int -}}
{{- end -}}

{{/* A duration in seconds: 25s, 5m, or a number. */}}
{{- define "sidetier.seconds" -}}
{{- $text := ternary (printf "%f" .) (toString .) (kindIs "float64" .) -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- $unit := regexFind "[a-z]+" $text -}}
{{- mulf (regexFind "[0-9]+([.][0-9]+)?" $text | float64) (dig $unit 1.0 $units) -}}
{{- end -}}

{{/* Names of the environment variables from which the configuration takes secrets: {env: NAME}, at any depth. */}}
{{- define "sidetier.secretVariables" -}}
{{- if kindIs "map" . -}}
{{- if and (eq (len .) 1) (hasKey . "env") -}}
{{- if kindIs "string" .env }}{{ .env }}{{ "\n" }}{{ end -}}
{{- else -}}
{{- range $key, $value := . }}{{ include "sidetier.secretVariables" $value }}{{ end -}}
{{- end -}}
{{- else if kindIs "slice" . -}}
{{- range . }}{{ include "sidetier.secretVariables" . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Whether a directory is equal to or below another: (list directory above). */}}
{{- define "sidetier.isBelow" -}}
{{- $directory := trimSuffix "/" (index . 0) -}}
{{- $above := trimSuffix "/" (index . 1) -}}
{{- if or (eq $directory $above) (hasPrefix (printf "%s/" $above) $directory) -}}true{{- end -}}
{{- end -}}

{{/* Whether the spool is on this mount, which must then be writable: (list root mountPath). */}}
{{- define "sidetier.holdsSpool" -}}
{{- $mount := index . 1 -}}
{{- range dig "uploader" "pins" "spool" list (index . 0).Values.config -}}
{{- include "sidetier.isBelow" (list . $mount) -}}
{{- end -}}
{{- end -}}
