{{/* What of the configuration the manifests need to know. */}}

{{/* Probes and Prometheus connect from outside of the container, where 127.0.0.1 does not answer. */}}
{{- define "sidetier.config" -}}
{{- $outside := ternary dict (dict "http" (dict "host" "0.0.0.0")) (eq .Values.mode "jobs") -}}
{{- toYaml (mustMergeOverwrite $outside (deepCopy .Values.config)) -}}
{{- end -}}

{{- define "sidetier.port" -}}
{{- dig "http" "port" 9108 .Values.config | int -}}
{{- end -}}

{{/* Seconds of a duration: 25s, 5m, or a number. */}}
{{- define "sidetier.seconds" -}}
{{- $text := ternary (printf "%f" .) (toString .) (kindIs "float64" .) -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- $unit := regexFind "[a-z]+" $text -}}
{{- mulf (regexFind "[0-9]+([.][0-9]+)?" $text | float64) (dig $unit 1.0 $units) -}}
{{- end -}}

{{/* The names of variables that the configuration takes secrets from: {env: NAME}, at any depth. */}}
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

{{/* Whether a directory lies at or below another: (list directory above). */}}
{{- define "sidetier.isBelow" -}}
{{- $directory := trimSuffix "/" (index . 0) -}}
{{- $above := trimSuffix "/" (index . 1) -}}
{{- if or (eq $directory $above) (hasPrefix (printf "%s/" $above) $directory) -}}true{{- end -}}
{{- end -}}

{{/* Whether the spool lies on this mount, which must then be writable: (list root mountPath). */}}
{{- define "sidetier.holdsSpool" -}}
{{- $mount := index . 1 -}}
{{- range dig "uploader" "pins" "spool" list (index . 0).Values.config -}}
{{- include "sidetier.isBelow" (list . $mount) -}}
{{- end -}}
{{- end -}}
