{{/* Parts of the page of all sidecars (fleet.yaml). */}}

{{- define "sidetier.fleet.selectorLabels" -}}
{{ include "sidetier.selectorLabels" . }}
app.kubernetes.io/component: fleet
{{- end -}}

{{/* Whether `config.fleet` names sidecars, such as those of another release. */}}
{{- define "sidetier.fleet.isConfigured" -}}
{{- if or (dig "fleet" "dns" "" .Values.config) (dig "fleet" "sidecars" list .Values.config) -}}true{{- end -}}
{{- end -}}

{{/* The headless Service of this release, whose name has the address of each sidecar; empty if `config.fleet`
names others. */}}
{{- define "sidetier.fleet.dns" -}}
{{- if not (include "sidetier.fleet.isConfigured" .) -}}
{{- printf "%s.%s.svc:%s" (include "sidetier.fullname" .) .Release.Namespace (include "sidetier.port" .) -}}
{{- end -}}
{{- end -}}

{{- define "sidetier.fleet.validate" -}}
{{- if and (eq .Values.mode "jobs") (not (include "sidetier.fleet.isConfigured" .)) -}}
{{- fail "fleet.enabled is true in mode jobs, which has no sidecars: name those of another release (config: {fleet: {dns: \"sidetier.kafka.svc:9108\"}})" -}}
{{- end -}}
{{- if not (or .Values.fleet.insecure (dig "http" "bearer_token" "" .Values.config)) -}}
{{- fail "fleet.enabled is true, without config.http.bearer_token: every client that reaches the port could read names of topics, offsets and errors; set the token, or fleet.insecure: true if the network is trusted" -}}
{{- end -}}
{{- end -}}
